"""Has the stand-in for NVIDIA's library answer what a recording says of cards and their links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from recorded.machine import Function, Link, Machine

SOURCE = Path(__file__).parents[1] / "machines/nvml/nvml_stub.c"
_ENDS = {"gpu": "gpu", "switch": "switch", "cpu": "npu"}
_PROBE = "import json; from xce_nodeagent.host import nvml; print(json.dumps(nvml.probe()))"


def build(folder: Path) -> Path:
    """Compile it into a folder, and give that."""
    target = folder / "libnvidia-ml.so.1"
    options = ["-std=gnu11", "-O1", "-shared", "-fPIC"]
    subprocess.run(["cc", *options, "-o", target, SOURCE], check=True)
    return folder


def probe(folder: Path, machine: Machine) -> tuple[str, str, dict[str, Any]]:
    """Ask it, by the real pynvml, in a process of its own, as the prober is one."""
    data = folder / "data"
    data.write_text("".join(f"{line}\n" for line in _lines(machine)), "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROBE],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder), "XCE_NVML_DATA": str(data)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    state, reason, facts = json.loads(done.stdout)
    return state, reason, facts


def cards(machine: Machine) -> list[Function]:
    """Give the cards that NVIDIA's driver would have, in the order of the bus."""
    found = [
        one for one in machine.functions if one.vendor == 0x10DE and one.kind in (0x0300, 0x0302)
    ]
    return sorted(found, key=lambda one: one.address.rjust(16, "0"))


def _lines(machine: Machine) -> list[str]:
    return [
        _line(one, [k for k in machine.links if k.one == one.address]) for one in cards(machine)
    ]


def _line(card: Function, links: list[Link]) -> str:
    domain, rest = card.address.split(":", 1)
    told = {
        "bus": f"{domain:0>8}:{rest}".upper(),
        "uuid": card.uuid,
        "serial": card.serial,
        "name": card.model.replace(" ", "_"),
        "nvlinks": ";".join(
            f"{_ENDS[link.end]}:{link.count}:{link.other or '-'}"
            for link in links
            if link.kind == "nvlink"
        ),
    }
    return " ".join(("gpu", *(f"{key}={value}" for key, value in told.items() if value)))
