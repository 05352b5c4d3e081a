"""The programs as a person reads them, and the encoding of their maps. No kernel is asked."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.errors import Enforcement
from xce_nodeagent.model.rule import (
    MAJOR_LIMIT,
    MINOR_LIMIT,
    READ_WRITE,
    Access,
    Device,
    Rule,
    normal,
)
from xce_nodeagent.privileged import bpf

DEVICES = st.builds(
    Device,
    st.sampled_from("bc"),
    st.integers(0, MAJOR_LIMIT - 1),
    st.integers(0, MINOR_LIMIT - 1),
)
RULES = st.builds(Rule, DEVICES, st.integers(1, 7))

# From the kernel's instruction-set.rst: what each operation code that we use does.
FORMS = {
    0x05: "goto {to}",
    0x07: "r{dst} += {imm}",
    0x15: "if r{dst} == {imm} goto {to}",
    0x1D: "if r{dst} == r{src} goto {to}",
    0x4F: "r{dst} |= r{src}",
    0x55: "if r{dst} != {imm} goto {to}",
    0x57: "r{dst} &= {imm}",
    0x5D: "if r{dst} != r{src} goto {to}",
    0x5F: "r{dst} &= r{src}",
    0x61: "r{dst} = *(u32 *)(r{src} + {off})",
    0x67: "r{dst} <<= {imm}",
    0x77: "r{dst} >>= {imm}",
    0x79: "r{dst} = *(u64 *)(r{src} + {off})",
    0x7B: "*(u64 *)(r{dst} + {off}) = r{src}",
    0x85: "call {imm}",
    0x95: "exit",
    0xA7: "r{dst} ^= {imm}",
    0xB5: "if r{dst} <= {imm} goto {to}",
    0xB7: "r{dst} = {imm}",
    0xBD: "if r{dst} <= r{src} goto {to}",
    0xBF: "r{dst} = r{src}",
}


def disassemble(code: bytes) -> str:
    lines = []
    wide = None
    for place, (op, registers, off, imm) in enumerate(struct.iter_unpack("=BBhi", code)):
        dst, src = registers & 15, registers >> 4
        if wide is not None:
            low, dst, src = wide
            value = (imm & 0xFFFFFFFF) << 32 | low
            shown = f"map fd {value}" if src == 1 else f"{value:#x}"
            lines.append(f"{place - 1:2}: r{dst} = {shown}")
            wide = None
        elif op == 0x18:
            wide = (imm & 0xFFFFFFFF, dst, src)
        else:
            text = FORMS[op].format(dst=dst, src=src, off=off, imm=imm, to=place + 1 + off)
            lines.append(f"{place:2}: {text}")
    return "\n".join(lines)


FENCE = """\
 0: r6 = *(u32 *)(r1 + 0)
 1: r2 = *(u32 *)(r1 + 4)
 2: r3 = *(u32 *)(r1 + 8)
 3: r7 = r6
 4: r6 >>= 16
 5: r7 &= 65535
 6: r7 <<= 32
 7: r2 <<= 20
 8: r7 |= r2
 9: r7 |= r3
10: r4 = 0
11: *(u64 *)(r10 + -8) = r7
12: r1 = map fd 8
14: r2 = r10
15: r2 += -8
16: call 1
17: if r0 != 0 goto 20
18: r0 = 1
19: exit
20: r1 = map fd 9
22: r2 = 0
23: call 81
24: r1 = *(u64 *)(r0 + 0)
25: if r1 <= 128 goto 27
26: r1 = 128
27: r2 = 0
28: r4 = 0
29: if r1 <= r2 goto 38
30: r2 += 1
31: r0 += 8
32: r3 = *(u64 *)(r0 + 0)
33: r5 = r3
34: r5 >>= 16
35: if r5 != r7 goto 29
36: r3 &= 65535
37: r4 = r3
38: r4 ^= -1
39: r6 &= r4
40: r0 = 1
41: if r6 == 0 goto 43
42: r0 = 0
43: exit"""

INLINE = """\
11: r1 = 0x20c300000
13: if r7 != r1 goto 16
14: r4 = 6
15: goto 21
16: r1 = 0x20c300001
18: if r7 == r1 goto 21
19: r0 = 1
20: exit
21: r4 ^= -1
22: r6 &= r4
23: r0 = 1
24: if r6 == 0 goto 26
25: r0 = 0
26: exit"""


def test_listing_of_the_shared_fence():
    assert disassemble(bpf.fence(8, 9, 128)) == FENCE


def test_listing_of_a_job_s_own_fence():
    granted, closed = Device("c", 195, 0), Device("c", 195, 1)
    code = bpf.inline_fence({closed, granted}, (Rule(granted, int(READ_WRITE)),))
    prologue, rest = FENCE.partition("\n11: ")[0], INLINE
    assert disassemble(code) == f"{prologue}\n{rest}"


def test_listing_of_a_fence_without_managed_devices_has_no_dead_end():
    assert disassemble(bpf.inline_fence((), ())).splitlines()[-2:] == ["11: r0 = 1", "12: exit"]


def test_listing_of_the_anchor():
    assert disassemble(bpf.anchor()) == " 0: r0 = 1\n 1: exit"


@given(DEVICES)
def test_device_survives_its_encoding(device):
    assert bpf.decode_device(bpf.encode_device(device)) == device


@given(DEVICES, DEVICES)
def test_two_devices_never_share_a_number(one, other):
    assert (bpf.number(one) == bpf.number(other)) == (one == other)


@given(st.lists(RULES, max_size=20))
def test_grants_survive_their_encoding(grants):
    value = bpf.encode_grants(grants)
    assert len(value) == bpf.grants_size(bpf.SLOTS)
    assert bpf.decode_grants(value) == normal(grants)


def test_zeroed_storage_means_no_grants():
    assert bpf.decode_grants(bytes(bpf.grants_size(bpf.SLOTS))) == ()


def test_as_many_grants_as_slots_fit_and_one_more_is_refused():
    grants = [Rule(Device("c", 195, minor), int(READ_WRITE)) for minor in range(5)]
    assert len(bpf.decode_grants(bpf.encode_grants(grants, 5))) == 5
    with pytest.raises(Enforcement, match=r"granted 5 devices.*room for 4") as caught:
        bpf.encode_grants(grants, 4)
    assert caught.value.details == {"grants": 5, "slots": 4}


def test_two_grants_of_one_device_take_one_slot():
    device = Device("c", 195, 0)
    grants = (Rule(device, int(Access.READ)), Rule(device, int(Access.WRITE)))
    assert bpf.decode_grants(bpf.encode_grants(grants, 1)) == (Rule(device, int(READ_WRITE)),)


@pytest.mark.parametrize("value", [struct.pack("=QQ", 2, 0), struct.pack("=QQ", 1, 0)])
def test_storage_that_we_cannot_have_written_is_refused(value):
    with pytest.raises(ValueError, match=r"count|managed device"):
        bpf.decode_grants(value)


@given(st.integers(0, 500))
def test_slots_of_a_map_are_told_by_its_value(slots):
    assert bpf.slots_of(bpf.grants_size(slots)) == slots
