"""bpf(2), asked for real. Nothing is attached anywhere but in a cgroup of the test's own."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys

import pytest

from xce_nodeagent.privileged import bpf, bpfcall

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


@pytest.fixture
def no_descriptor_is_left():
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def hash_map(no_descriptor_is_left):
    fd = bpfcall.map_create(
        bpfcall.HASH, "xce_test", key_size=8, value_size=4, max_entries=4, flags=bpfcall.NO_PREALLOC
    )
    yield fd
    os.close(fd)


def key(number):
    return struct.pack("=Q", number)


def test_map_holds_what_was_written(hash_map):
    assert bpfcall.map_lookup(hash_map, key(1), 4) is None
    bpfcall.map_update(hash_map, key(1), b"abcd")
    bpfcall.map_update(hash_map, key(2), b"efgh")
    assert bpfcall.map_lookup(hash_map, key(1), 4) == b"abcd"
    assert set(bpfcall.map_keys(hash_map, 8)) == {key(1), key(2)}
    bpfcall.map_delete(hash_map, key(1))
    bpfcall.map_delete(hash_map, key(1))
    assert list(bpfcall.map_keys(hash_map, 8)) == [key(2)]


def test_map_tells_what_it_is(hash_map):
    info = bpfcall.map_info(hash_map)
    assert info[1:] == (bpfcall.HASH, 8, 4, "xce_test")
    again = bpfcall.map_open(info.id)
    try:
        assert bpfcall.map_info(again) == info
    finally:
        os.close(again)


def test_error_says_what_was_tried(hash_map):
    for number in range(4):
        bpfcall.map_update(hash_map, key(number), b"abcd")
    with pytest.raises(OSError, match="update a map: Argument list too long"):
        bpfcall.map_update(hash_map, key(4), b"abcd")


def test_refused_program_is_told_in_the_verifier_s_words(no_descriptor_is_left):
    with pytest.raises(PermissionError, match=r"load the program xce_test.*R0 !read_ok"):
        bpfcall.prog_load(bpf.assemble([bpf.Insn(0x95)]), "xce_test")


def test_bound_map_shows_in_the_program_s_list(hash_map):
    program = bpfcall.prog_load(bpf.anchor(), "xce_test")
    try:
        assert bpfcall.prog_info(program).map_ids == ()
        bpfcall.bind_map(program, hash_map)
        bpfcall.bind_map(program, hash_map)
        assert bpfcall.prog_info(program).map_ids == (bpfcall.map_info(hash_map).id,)
    finally:
        os.close(program)


def test_as_many_programs_as_a_cgroup_takes_are_all_listed(world2):
    fd = os.open(world2.base, os.O_RDONLY | os.O_DIRECTORY)
    program = -1
    try:
        for _ in range(64):
            program = bpfcall.prog_load(bpf.anchor(), "xce_test")
            bpfcall.attach(fd, program)
            os.close(program)
        found = bpfcall.query(fd)
        assert (len(set(found.ids)), found.flags) == (64, bpfcall.MULTI)
        program = bpfcall.prog_load(bpf.anchor(), "xce_test")
        with pytest.raises(OSError, match="attach") as caught:
            bpfcall.attach(fd, program)
        assert caught.value.errno == errno.E2BIG
        os.close(program)
    finally:
        os.close(fd)


def test_descriptor_zero_is_never_used():
    # In union bpf_attr it means "none". The process under test has no standard input.
    code = (
        "import os; os.close(0)\n"
        "from xce_nodeagent.privileged import bpf, bpfcall\n"
        "fd = bpfcall.prog_load(bpf.anchor(), 'xce_test')\n"
        "assert fd >= 3, fd\n"
        "try: os.fstat(0)\n"
        "except OSError: print('fine')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "fine\n"
