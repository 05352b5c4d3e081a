"""Numbers that no kernel writes, in any file and name of a machine: they cost that value alone.

Python reads no number of more than 4,300 digits, and JSON holds none of more than 64 bits.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.inventory import advance
from xce_nodeagent.providers import all_providers


def looked(root: Path) -> None:
    found, _, _ = advance(scan(Host(root), all_providers()), {}, 0)
    assert not [one.reason for one in found.problems if re.match(r"\w+Error: ", one.reason)]
    assert msgspec.json.encode(found)


@pytest.mark.parametrize(
    "digits", ["9" * 5000, "9" * 25, "f" * 5000], ids=["long", "past 64 bits", "hex"]
)
def test_in_every_file(small: Path, digits: str) -> None:
    files = [path for path in small.rglob("*") if path.is_file() and not path.is_symlink()]
    more = {
        "proc/devices": "Character devices:\n195 nvidia\n",
        "proc/driver/nvidia-caps/mig-minors": "config 1\ngpu0/gi1/access 30\n",
        "proc/meminfo": "MemTotal: 16 kB\n",
    }
    for name, text in more.items():
        path = small / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            files.append(path)
    assert len(files) > 50
    for path in files:
        text = path.read_text("utf-8", "replace")
        long = re.sub(r"[0-9]+", digits, text)
        path.write_text(long)
        looked(small)
        path.write_text(text)
    for path in files:
        path.write_text(re.sub(r"[0-9]+", digits, path.read_text("utf-8", "replace")))
    looked(small)


def test_in_names(small: Path) -> None:
    digits = "9" * 200
    for folder, stem in (
        ("sys/devices/system/cpu", "cpu"),
        ("sys/devices/system/node", "node"),
        ("dev/nvidia-caps-imex-channels", "channel"),
        ("dev/nvidia-caps", "nvidia-cap"),
        ("dev", "nvidia"),
        ("dev/dri", "card"),
        ("sys/class/kfd/kfd/topology/nodes", ""),
    ):
        (small / folder / f"{stem}{digits}").mkdir(parents=True)
    looked(small)
