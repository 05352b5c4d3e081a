"""Sets of CPUs as the kernel writes them: lists, such as `0-3,8`, and masks.

Source: kernel, Documentation/admin-guide/cputopology.rst.
"""

from __future__ import annotations

import re

from xce_nodeagent.host.machine import Host

LIMIT = 1 << 16
"""CPUs of a machine, at most; no kernel is built for so many. What names more is rubbish."""


def read(text: str) -> tuple[int, ...]:
    """Read a CPU list, such as `0-3,8`; what is not one is empty."""
    cpus: set[int] = set()
    for part in filter(None, text.replace("\n", "").split(",")):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII)
        if not match or int(match[2] or match[1]) >= LIMIT:
            return ()
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(cpus))


def inside(host: Host, folder: str, name: str) -> tuple[int, ...]:
    """Read CPUs from a list, or else from a mask: `local_cpulist` or `local_cpus`, and so on.

    The list is `<name>list` or `<name>_list`; the mask, which older kernels have alone, is
    `<name>`, `<name>s` or `<name>map`.
    """
    for listed in (f"{name}list", f"{name}_list"):
        if text := host.read(f"{folder}/{listed}"):
            return read(text)
    for mask in (name, f"{name}s", f"{name}map"):
        text = host.read(f"{folder}/{mask}")
        if text and re.fullmatch(r"[0-9a-f,]+", text):
            # 32-bit words in hexadecimal, the highest first, each with all of its digits.
            bits = f"{int(text.replace(',', '') or '0', 16):b}"
            return tuple(cpu for cpu, bit in enumerate(bits[: -LIMIT - 1 : -1]) if bit == "1")
    return ()
