"""The file for node_exporter: replaced whole, readable for all, written only when it moves."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable
from pathlib import Path

from xce_nodeagent.daemon.textfile import Textfile

PATIENCE = 20.0
OFTEN = 0.005


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110  # a file tells nobody that it was written
            await asyncio.sleep(OFTEN)


def _has(path: Path, text: bytes) -> bool:
    return path.exists() and path.read_bytes() == text


def test_it_is_written_when_it_moves_and_only_then(tmp_path) -> None:
    path, told = tmp_path / "xce.prom", [b"xce 1\n"]
    looks = 0

    def metrics() -> bytes:
        nonlocal looks
        looks += 1
        return told[0]

    async def main() -> None:
        file = Textfile(path, OFTEN, metrics)
        await _until(lambda: _has(path, b"xce 1\n"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        # What is there is replaced, never written into: the same file is there after more looks.
        before, seen = path.stat().st_ino, looks
        await _until(lambda: looks > seen + 3)
        assert path.stat().st_ino == before
        told[0] = b"xce 2\n"
        await _until(lambda: _has(path, b"xce 2\n"))
        assert [one.name for one in tmp_path.iterdir()] == ["xce.prom"]
        await file.close()
        assert not path.exists()

    asyncio.run(main())


def test_it_goes_on_when_the_folder_is_there_again(tmp_path, caplog) -> None:
    path = tmp_path / "folder" / "xce.prom"

    async def main() -> None:
        file = Textfile(path, OFTEN, lambda: b"xce 1\n")
        await _until(lambda: bool(file.fault))
        assert file.fault == "No such file or directory"
        path.parent.mkdir()
        await _until(lambda: _has(path, b"xce 1\n") and not file.fault)
        await file.close()

    asyncio.run(main())
    assert caplog.text.count("cannot be written") == 1
