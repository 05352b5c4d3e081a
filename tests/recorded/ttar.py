"""Unpacks ttar archives, the plain text archives of Prometheus' exporters (ttar's own comments).

An entry is a `Directory:`, or a `Path:` followed by `SymlinkTo:`, or by `Lines:` and its lines; a
`Mode:` ends it. In lines, `NULLBYTE` stands for one and `EOF` for an end without a newline.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def write(archive: bytes, root: Path) -> Path:
    """Unpack below a folder, and give that."""
    # Some files are no text; a line ends with a newline only, whatever else is in it.
    lines = iter(archive.decode("utf-8", "surrogateescape").split("\n"))
    path = root
    for line in lines:
        if not line or line.startswith("#"):
            continue
        key, _, value = line.partition(": ")
        if key == "Directory":
            _below(root, value).mkdir(parents=True, exist_ok=True)
        elif key == "Path":
            path = _below(root, value)
            path.parent.mkdir(parents=True, exist_ok=True)
        elif key == "SymlinkTo":
            path.symlink_to(value)
        elif key == "Lines":
            path.write_bytes(_content(lines, int(value)))
        elif key != "Mode":
            raise ValueError(f"{line!r}: not a line of an archive")
    return root


def _below(root: Path, name: str) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(f"{name!r}: outside of the archive")
    return root.joinpath(*parts)


def _content(lines: Iterator[str], number: int) -> bytes:
    text = "".join(f"{next(lines)}\n" for _ in range(number))
    if text.endswith("EOF\n"):
        text = text.removesuffix("EOF\n")
    # A word of the archive's own stands behind a backslash.
    text = text.replace("NULLBYTE", "\0").replace("\\\0", "NULLBYTE")
    return text.encode("utf-8", "surrogateescape")
