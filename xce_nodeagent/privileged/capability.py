"""Capabilities (capabilities(7)): give up all but a named set, so that none can come back."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Set as AbstractSet
from enum import IntEnum

from xce_nodeagent.privileged.syscall import prctl


class Capability(IntEnum):
    """The capabilities that we speak of (linux/capability.h)."""

    DAC_OVERRIDE = 1
    DAC_READ_SEARCH = 2
    KILL = 5
    SETGID = 6
    SETUID = 7
    SETPCAP = 8
    NET_ADMIN = 12
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    MKNOD = 27
    CHECKPOINT_RESTORE = 40  # since Linux 5.9; before, only CAP_SYS_ADMIN would do


_VERSION_3 = 0x20080522
_PR_SET_KEEPCAPS, _PR_SET_SECUREBITS, _PR_CAP_AMBIENT = 8, 28, 47
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_SECUREBITS = 0b1100_1111
"""NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, each with its lock (linux/securebits.h): uid 0
gives nothing by itself any more, and a change of uid neither takes nor gives."""

_LIBC = ctypes.CDLL(None, use_errno=True)


def permitted() -> frozenset[int]:
    """Give the numbers of the capabilities that this thread may use."""
    return _sets()[1]


def effective() -> frozenset[int]:
    """Give the numbers of the capabilities that this thread uses."""
    return _sets()[0]


def bounding() -> frozenset[int]:
    """Give the numbers of the capabilities that this thread could ever gain."""
    found = set()
    for number in range(64):
        try:
            if prctl(_PR_CAPBSET_READ, number):
                found.add(number)
        except OSError:  # EINVAL: the kernel knows no more of them
            break
    return frozenset(found)


def seal() -> None:
    """Close every way to gain capabilities, and keep those that there are over a change of uid.

    The bounding and ambient sets are emptied. A process without CAP_SETPCAP cannot do more than
    the last; it is a plain user's, and `no_new_privs` closes the rest.
    """
    if Capability.SETPCAP in effective():
        for number in bounding():
            prctl(_PR_CAPBSET_DROP, number)
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        prctl(_PR_SET_SECUREBITS, _SECUREBITS)
    else:
        prctl(_PR_SET_KEEPCAPS, 1)


def limit(wanted: AbstractSet[int]) -> None:
    """Let this process, and what it forks, never gain another capability than these.

    A process without CAP_SETPCAP cannot, and gains none by `no_new_privs`.
    """
    if Capability.SETPCAP in effective():
        for number in bounding() - wanted:
            prctl(_PR_CAPBSET_DROP, number)


def keep(wanted: AbstractSet[Capability]) -> None:
    """Give up every capability of this thread but these, as far as it has them.

    One that is missing (a container that was started without) is no error here: what needs it
    fails, and says what failed.
    """
    bits = sum(1 << number for number in wanted & permitted())
    low, high = bits & 0xFFFFFFFF, bits >> 32
    # struct __user_cap_data_struct, twice: effective, permitted, inheritable
    _capset(struct.pack("=6I", low, low, 0, high, high, 0))


def _sets() -> tuple[frozenset[int], frozenset[int]]:
    data = ctypes.create_string_buffer(24)
    if _LIBC.capget(struct.pack("=Ii", _VERSION_3, 0), data):
        code = ctypes.get_errno()
        raise OSError(code, f"capget: {os.strerror(code)}")
    low_e, low_p, _, high_e, high_p, _ = struct.unpack("=6I", data.raw)
    return _numbers(low_e | high_e << 32), _numbers(low_p | high_p << 32)


def _capset(data: bytes) -> None:
    if _LIBC.capset(struct.pack("=Ii", _VERSION_3, 0), data):
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")


def _numbers(bits: int) -> frozenset[int]:
    return frozenset(number for number in range(64) if bits >> number & 1)
