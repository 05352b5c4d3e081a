"""Writes a record of umockdev as a tree (umockdev's docs/device_format.txt).

`P:` is a path, `E:` a property, `A:` an attribute, `H:` one in hexadecimal, `L:` a link, `N:` a
device node, maybe with its content. Attributes that are links are told relatively, as they are.
"""

from __future__ import annotations

import re
from pathlib import Path

from recorded.tree import Tree

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


def write(text: str, root: Path) -> Path:
    """Write the tree below a folder, and give that."""
    tree = Tree(root)
    (root / "sys/class").mkdir(parents=True)
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            _device(tree, lines)
    return root


def _device(tree: Tree, lines: list[str]) -> None:
    if not lines[0].startswith("P: "):
        raise ValueError(f"{lines[0]!r}: a device begins with its path, P:")
    folder = f"sys{lines[0][3:]}"
    properties: dict[str, str] = {}
    (tree.root / folder).mkdir(parents=True, exist_ok=True)
    for line in lines[1:]:
        kind, _, rest = line.partition(": ")
        name, _, value = rest.partition("=")
        path = tree.root / folder / name
        if kind == "E":
            properties[name] = value
        elif kind in ("A", "H"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_text(value) if kind == "A" else bytes.fromhex(value))
        elif kind == "L":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(value)
            # What it leads to is a device of its own, or a driver, of which only the name is told.
            (path.parent / value).resolve().mkdir(parents=True, exist_ok=True)
        elif kind not in ("N", "S"):
            raise ValueError(f"{line!r}: not a line of a device")
    if subsystem := properties.get("SUBSYSTEM"):
        tree.device(folder, subsystem)
    if "MAJOR" in properties:
        tree.file(f"{folder}/dev", f"{properties['MAJOR']}:{properties['MINOR']}")


def _text(value: str) -> bytes:
    plain = re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), value)
    return f"{plain}\n".encode()
