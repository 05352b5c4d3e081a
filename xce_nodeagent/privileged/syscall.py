"""System calls by number, for those that neither Python nor every libc has a function for.

The numbers are the kernel's and never change: arch/x86/entry/syscalls/syscall_64.tbl, and for
arm64 include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "finit_module": (313, 273),
    "fork": (57, None),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "kill": (62, 129),
    "listen": (50, 201),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "seccomp": (317, 277),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statx": (332, 291),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "tgkill": (234, 131),
    "timer_create": (222, 107),
    "timer_settime": (223, 110),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, None),
}
"""Name: number on x86-64, number on arm64; None where the architecture does not have it."""

_COLUMN = {"x86_64": 0, "aarch64": 1}
_LIBC = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """Give this machine's architecture as the kernel names it (uname -m)."""
    return os.uname().machine


def number(name: str, arch: str) -> int | None:
    """Give a call's number; None where the architecture does not have it."""
    column = _COLUMN.get(arch)
    if column is None:
        raise OSError(38, f"no system call numbers for {arch}: expected x86_64 or aarch64")
    return NUMBERS[name][column]


def call(name: str, *arguments: Any) -> int:
    """Make a system call; integers are passed as 64 bits. Raise OSError when it fails."""
    found = number(name, machine())
    if found is None:
        raise OSError(38, f"{machine()} has no {name}(2)")
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = _LIBC.syscall(ctypes.c_long(found), *passed)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: int) -> int:
    """Set or get something of this process (prctl(2)). Raise OSError when it fails.

    Unused arguments must be zero, and are.
    """
    padded = [*arguments, 0, 0, 0, 0][:4]
    result: int = _LIBC.prctl(option, *(ctypes.c_ulong(a) for a in padded))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")
    return result
