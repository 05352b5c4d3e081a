"""The host itself: what it is called, what it runs, how much it has."""

from __future__ import annotations

import re
from typing import Any

from xce_nodeagent.host import cpulist
from xce_nodeagent.host.machine import Host


def facts(host: Host, cpu: dict[str, Any]) -> dict[str, Any]:
    """Give the facts of the host itself; nothing that changes while it runs."""
    memory = re.search(r"MemTotal:\s*([0-9]{1,15}) kB", host.read("/proc/meminfo") or "")
    # A recorded machine is its sys, proc and dev: what else there is, it has as an answer.
    release = host.answer("os-release", lambda: host.read("/etc/os-release") or "", str) or ""
    system = re.search(r'^PRETTY_NAME="?([^"\n]+)', release, re.MULTILINE)
    online = host.read("/sys/devices/system/cpu/online")
    found: dict[str, Any] = {
        "hostname": host.read("/proc/sys/kernel/hostname"),
        "kernel": host.read("/proc/sys/kernel/osrelease"),
        "architecture": cpu.get("arch"),
        "operating_system": system[1] if system else None,
        "cpu_model": cpu.get("model_name"),
        "cpus": len(cpulist.read(online)) if online else None,
        "memory_bytes": int(memory[1]) << 10 if memory else None,
    }
    return {name: value for name, value in found.items() if value is not None}
