"""People see which NICs are the host's own, and why."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest


def shown(machine: Any, style: str) -> str:
    command = [sys.executable, "-m", "xce_nodeagent", "inventory", style]
    return subprocess.run(
        [*command, "--sysroot", machine.root], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("style", ["--table", "--tree"])
def test_the_hosts_own_is_told_with_its_reason(machine: Any, style: str) -> None:
    machine.netdev("eth0", machine.function("0000:18:00.0"))
    machine.netdev("eth1", machine.function("0000:3a:00.0"))
    machine.default_route("eth0")
    lines = shown(machine, style).splitlines()
    (own,) = (line for line in lines if "eth0" in line and "host's own" not in line)
    (other,) = (line for line in lines if "eth1" in line)
    assert "host's" in own
    assert "host's" not in other
    why = "0000:18:00.0 is the host's own: the host's IPv4 default route goes out by it"
    assert why in lines
