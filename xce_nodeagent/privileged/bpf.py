"""The device programs as BPF instructions, and the encoding of their maps. Pure.

There are three programs, all of type BPF_PROG_TYPE_CGROUP_DEVICE:

- the **fence**, one for all jobs: it looks the device up in the hash `managed`; a device that is
  not there is none of its business. For one that is, it reads the grants of the cgroup that it is
  attached to out of that cgroup's storage. The storage is born zeroed, and zero means no grants,
  so the attachment alone closes every managed device. No instruction names a job: the whole
  policy of a job is one value, which the kernel swaps whole.
- the **anchor**, which allows everything. It exists only so that the maps can be bound to a
  program that outlives every job, and be found again through it.
- the **inline fence**, for a kernel that refuses the first one: the same judgement with one job's
  rules in the instructions.

A device is one number of 48 bits: type (1 block, 2 character), major (12 bits), minor (20 bits).
It is the key of `managed`; a grant is that number shifted left by 16, with the access bits below.
Instruction set: kernel Documentation/bpf/standardization/instruction-set.rst. Context and return
value (1 allows, 0 refuses with EPERM): linux/bpf.h, struct bpf_cgroup_dev_ctx.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

from xce_nodeagent.errors import Enforcement
from xce_nodeagent.model.rule import Device, Rule, normal

FENCE_NAME = "xce_fence"
INLINE_NAME = "xce_fence_job"
ANCHOR_NAME = "xce_anchor"
MANAGED_NAME = "xce_managed"
GRANTS_NAME = "xce_grants"

MANAGED_LIMIT = 4096
"""Managed devices of a host: 8 GPUs with every MIG slice and capability are below 600."""

SLOTS = 128
"""Grants that a job's storage has room for. A job with 8 GPUs, their DRM nodes, 7 MIG slices with
2 capability nodes each, 16 verbs devices and all control nodes has fewer than 70. Measured on
6.18: loading costs 0.8 ms with 64 slots, 1.4 ms with 128, 2.8 ms with 256, once per binder."""

_KEY = struct.Struct("=Q")
_TYPES = {"b": 1, "c": 2}  # BPF_DEVCG_DEV_BLOCK, BPF_DEVCG_DEV_CHAR
_LETTERS = {1: "b", 2: "c"}

KEY_SIZE = _KEY.size
CGROUP_KEY_SIZE = 8  # the cgroup's id: one value for each cgroup, since kernel 5.9


def grants_size(slots: int) -> int:
    """Give the bytes of a storage value: a count, then the slots."""
    return (1 + slots) * _KEY.size


def slots_of(value_size: int) -> int:
    """Give the slots of a storage map that an older binder made."""
    return value_size // _KEY.size - 1


def number(device: Device) -> int:
    """Give a device as the programs compare it."""
    return _TYPES[device.type] << 32 | device.major << 20 | device.minor


def encode_device(device: Device) -> bytes:
    """Give the key of `managed`."""
    return _KEY.pack(number(device))


def decode_device(key: bytes) -> Device:
    """Read a key of `managed`; raise ValueError for one that we cannot have written."""
    (value,) = _KEY.unpack(key)
    kind = value >> 32
    if kind not in _LETTERS:
        raise ValueError(f"{key.hex()} is not a managed device")
    return Device("c" if kind == 2 else "b", value >> 20 & 0xFFF, value & 0xFFFFF)


def encode_grants(grants: Iterable[Rule], slots: int = SLOTS) -> bytes:
    """Give a job's storage value; raise Enforcement when there are more grants than slots."""
    rules = normal(grants)
    if len(rules) > slots:
        raise Enforcement(
            f"the job is granted {len(rules)} devices, but its cgroup's storage has room for"
            f" {slots}: give the job fewer instances",
            grants=len(rules),
            slots=slots,
        )
    words = [len(rules)]
    words += [number(rule.device) << 16 | rule.access for rule in rules]
    words += [0] * (slots - len(rules))
    return struct.pack(f"={1 + slots}Q", *words)


def decode_grants(value: bytes) -> tuple[Rule, ...]:
    """Read a storage value, for verification; raise ValueError for one that is not ours."""
    count, *words = struct.unpack(f"={len(value) // _KEY.size}Q", value)
    if count > len(words):
        raise ValueError(f"a count of {count} grants in {len(words)} slots")
    return tuple(
        Rule(decode_device(_KEY.pack(word >> 16)), word & 0xFFFF) for word in words[:count]
    )


# ---- instructions ---------------------------------------------------------------------------


class Insn(NamedTuple):
    """One instruction; a jump's `off` may be the name of a label."""

    code: int
    dst: int = 0
    src: int = 0
    off: int | str = 0
    imm: int = 0


R0, R1, R2, R3, R4, R5, R6, R7, _R8, _R9, FP = range(11)

_LOOKUP_ELEM = 1  # linux/bpf.h, BPF_FUNC_map_lookup_elem
_GET_LOCAL_STORAGE = 81  # BPF_FUNC_get_local_storage
_PSEUDO_MAP_FD = 1  # the source register of a 64-bit load whose constant is a map's descriptor

_EXIT = Insn(0x95)


def _load32(dst: int, src: int, off: int) -> Insn:
    return Insn(0x61, dst, src, off)


def _load64(dst: int, src: int, off: int) -> Insn:
    return Insn(0x79, dst, src, off)


def _store64(dst: int, src: int, off: int) -> Insn:
    return Insn(0x7B, dst, src, off)


def _move(dst: int, src: int) -> Insn:
    return Insn(0xBF, dst, src)


def _set(dst: int, imm: int) -> Insn:
    return Insn(0xB7, dst, imm=imm)


def _add(dst: int, imm: int) -> Insn:
    return Insn(0x07, dst, imm=imm)


def _shift_left(dst: int, bits: int) -> Insn:
    return Insn(0x67, dst, imm=bits)


def _shift_right(dst: int, bits: int) -> Insn:
    return Insn(0x77, dst, imm=bits)


def _and_not(dst: int, src: int) -> tuple[Insn, Insn]:
    return Insn(0xA7, src, imm=-1), Insn(0x5F, dst, src)  # src ^= -1; dst &= src


def _or(dst: int, src: int) -> Insn:
    return Insn(0x4F, dst, src)


def _constant(dst: int, value: int, src: int = 0) -> tuple[Insn, Insn]:
    """Load 64 bits: the one instruction that takes two places."""
    low, high = value & 0xFFFFFFFF, value >> 32
    return Insn(0x18, dst, src, imm=low - (1 << 32) if low >> 31 else low), Insn(0, imm=high)


def _call(helper: int) -> Insn:
    return Insn(0x85, imm=helper)


def _goto(label: str) -> Insn:
    return Insn(0x05, off=label)


def assemble(items: Iterable[Insn | str]) -> bytes:
    """Turn instructions and labels (strings) into the kernel's `struct bpf_insn[]`."""
    places: dict[str, int] = {}
    insns: list[Insn] = []
    for item in items:
        if isinstance(item, str):
            places[item] = len(insns)
        else:
            insns.append(item)
    code = bytearray()
    for place, (op, dst, src, off, imm) in enumerate(insns):
        distance = off if isinstance(off, int) else places[off] - place - 1
        code += struct.pack("=BBhi", op, src << 4 | dst, distance, imm)
    return bytes(code)


# r6 = the access that is asked for, r7 = the device, r4 = the access that is granted
_READ_CONTEXT = (
    _load32(R6, R1, 0),  # access << 16 | type
    _load32(R2, R1, 4),  # major
    _load32(R3, R1, 8),  # minor
    _move(R7, R6),
    _shift_right(R6, 16),
    Insn(0x57, R7, imm=0xFFFF),  # r7 &= 0xffff: the type
    _shift_left(R7, 32),
    _shift_left(R2, 20),
    _or(R7, R2),
    _or(R7, R3),
    _set(R4, 0),
)

# Allow when no bit is asked for beyond those that are granted.
_JUDGE = (
    *_and_not(R6, R4),
    _set(R0, 1),
    Insn(0x15, R6, off="exit", imm=0),  # if r6 == 0 goto exit
    _set(R0, 0),
    "exit",
    _EXIT,
)


def fence(managed_fd: int, grants_fd: int, slots: int) -> bytes:
    """Assemble the program that all jobs share; the descriptors are those of its two maps."""
    return assemble(
        (
            *_READ_CONTEXT,
            _store64(FP, R7, -8),
            *_constant(R1, managed_fd, _PSEUDO_MAP_FD),
            _move(R2, FP),
            _add(R2, -8),
            _call(_LOOKUP_ELEM),
            Insn(0x55, R0, off="managed", imm=0),  # if r0 != 0 goto managed
            _set(R0, 1),
            _EXIT,
            "managed",
            *_constant(R1, grants_fd, _PSEUDO_MAP_FD),
            _set(R2, 0),
            _call(_GET_LOCAL_STORAGE),  # never null; clobbers r1 to r5
            _load64(R1, R0, 0),  # count
            # The verifier must see a bound that does not come from memory.
            Insn(0xB5, R1, off="bounded", imm=slots),  # if r1 <= slots goto bounded
            _set(R1, slots),
            "bounded",
            _set(R2, 0),
            _set(R4, 0),
            "next",
            # Older verifiers follow a comparison only when its right side is known, as r2 is.
            Insn(0xBD, R1, R2, off="judge"),  # if r1 <= r2 goto judge
            _add(R2, 1),
            _add(R0, 8),
            _load64(R3, R0, 0),  # device << 16 | access
            _move(R5, R3),
            _shift_right(R5, 16),
            Insn(0x5D, R5, R7, off="next"),  # if r5 != r7 goto next
            Insn(0x57, R3, imm=0xFFFF),  # r3 &= 0xffff: the access
            _move(R4, R3),
            "judge",
            *_JUDGE,
        )
    )


def anchor() -> bytes:
    """Assemble the program that allows everything."""
    return assemble((_set(R0, 1), _EXIT))


def inline_fence(managed: Collection[Device], grants: Iterable[Rule]) -> bytes:
    """Assemble one job's own program: three instructions for each device, five where granted."""
    granted = {rule.device: rule.access for rule in normal(grants)}
    items: list[Insn | str] = [*_READ_CONTEXT]
    for device in sorted(managed):
        access = granted.get(device, 0)
        items += _constant(R1, number(device))
        if access:
            after = f"after {device}"
            items += [Insn(0x5D, R7, R1, off=after), _set(R4, access), _goto("judge"), after]
        else:
            items.append(Insn(0x1D, R7, R1, off="judge"))  # if r7 == r1 goto judge
    items += [_set(R0, 1), _EXIT]
    if managed:  # the verifier refuses what cannot be reached
        items += ["judge", *_JUDGE]
    return assemble(items)
