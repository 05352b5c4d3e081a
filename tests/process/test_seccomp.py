"""The filters: what they are, instruction by instruction, and what the kernel makes of them."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xce_nodeagent.privileged import seccomp, syscall

HERE = Path(__file__).parent
FILTERS = ("AGENT", "BINDER", "PROBER", "WITNESS")
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", 0),
    "aarch64": ("/usr/include/asm-generic/unistd.h", 1),
}
NEWER_THAN_HEADERS = {"open_tree_attr"}  # Linux 6.15


def confined(name, what):
    done = subprocess.run(
        [sys.executable, str(HERE / "confined.py"), name, what],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


def run(program, arch, number, args=(0, 0)):
    """Run a filter as the kernel would (net/core/filter.c), on one call; give its result."""
    fields = {0: number, 4: arch, 16: args[0], 24: args[1]}
    place, accumulator = 0, 0
    while True:
        code, jt, jf, k = program[place]
        place += 1
        if code == 0x20:
            accumulator = fields[k] & 0xFFFFFFFF
        elif code == 0x06:
            return k
        else:
            holds = {
                0x15: accumulator == k,
                0x35: accumulator >= k,
                0x45: bool(accumulator & k),
            }[code]
            place += jt if holds else jf


EPERM, ENOSYS, ALLOW, KILL = 0x50001, 0x50026, 0x7FFF0000, 0x80000000


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", FILTERS)
def test_every_call_of_every_filter_is_judged_as_its_list_says(name, arch):
    refused = getattr(seccomp, name)
    program = seccomp.assemble(refused, arch)
    audit = seccomp.AUDIT_ARCH[arch]
    bad = {syscall.number(call, arch) for call in refused}
    clone, clone3 = syscall.number("clone", arch), syscall.number("clone3", arch)
    ioctl = syscall.number("ioctl", arch)
    for number in range(600):
        if number == clone3:
            expected = ENOSYS
        elif number in bad or number == clone:  # clone without CLONE_THREAD
            expected = EPERM
        else:
            expected = ALLOW
        assert run(program, audit, number) == expected, number
    assert run(program, audit, clone, (0x10000 | 0x100, 0)) == ALLOW
    assert run(program, audit, clone, (0x10000000, 0)) == EPERM  # CLONE_NEWUSER
    assert run(program, audit, ioctl, (0, 0x5412)) == EPERM
    assert run(program, audit, ioctl, (0, 0x541C)) == EPERM
    assert run(program, audit, ioctl, (0, 0x1_0000_5412)) == EPERM  # the kernel takes 32 bits
    assert run(program, audit, ioctl, (0, 0x5413)) == ALLOW
    assert run(program, 0x40000003, 2) == KILL  # i386: fork by int 0x80
    if arch == "x86_64":
        assert run(program, audit, 0x40000000 | 39) == EPERM  # x32


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_supervisor_may_fork_and_start_no_program(arch):
    program = seccomp.assemble(seccomp.SUPERVISOR, arch, forks=True)
    audit = seccomp.AUDIT_ARCH[arch]
    for name in syscall.NUMBERS:
        number = syscall.number(name, arch)
        if number is None:
            continue
        free = name in ("fork", "vfork", "clone", "clone3", "bpf", "kcmp", "ioctl", "seccomp")
        free |= name in seccomp.SOCKETS | seccomp.SIGNALS or name.startswith(("timer_", "statx"))
        assert run(program, audit, number) == (ALLOW if free else EPERM), name


def listing(program, arch):
    """Write a filter as a person reads it: one instruction a line, calls by their names."""
    names = {syscall.number(name, arch): name for name in syscall.NUMBERS}
    results = {value: name for name, value in seccomp._RESULTS.items()}
    fields = {
        seccomp._NR: "nr", seccomp._ARCH: "arch", seccomp._ARG0: "arg0", seccomp._ARG1: "arg1",
    }  # fmt: skip
    tests = {seccomp._JEQ: "==", seccomp._JGE: ">=", seccomp._JSET: "&"}
    text = []
    loaded = ""
    for place, (code, jt, jf, k) in enumerate(program):
        if code == seccomp._LOAD:
            loaded = fields[k]
            what = f"load {loaded}"
        elif code == seccomp._RETURN:
            what = f"return {results[k]}"
        else:
            a_call = loaded == "nr" and code == seccomp._JEQ
            operand = names.get(k, f"{k:#x}") if a_call else f"{k:#x}"
            what = f"if {loaded} {tests[code]} {operand} goto {place + 1 + jt}"
            what += f" else {place + 1 + jf}" if jf else ""
        text.append(f"{place:3} {what}\n")
    return "".join(text)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_agents_filter_is_the_one_that_was_reviewed(arch):
    shown = listing(seccomp.assemble(seccomp.AGENT, arch), arch)
    assert shown == (HERE / "golden" / f"agent.{arch}.txt").read_text("ascii")


@pytest.mark.parametrize("arch", HEADERS)
def test_the_numbers_are_those_of_the_kernels_headers(arch):
    path, column = HEADERS[arch]
    if not Path(path).exists():
        pytest.skip(f"needs {path}, from linux-libc-dev")
    text = Path(path).read_text("ascii")
    defined = {
        name: int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)
    }
    for name, numbers in syscall.NUMBERS.items():
        if name not in NEWER_THAN_HEADERS:
            assert defined.get(name) == numbers[column], name


@pytest.mark.parametrize("name", FILTERS)
def test_the_kernel_refuses_in_the_main_thread_and_in_one_that_was_there_before(name):
    found = confined(name, "refuses")
    refused = getattr(seccomp, name)
    for thread in ("main", "second"):
        told = found[thread]
        for call in set(told) & set(syscall.NUMBERS):
            if told[call] is None or call == "clone3":
                continue
            if call in refused or call == "clone":
                assert told[call] == "EPERM", (thread, call)
        for way in ("os.fork", "os.execv", "posix_spawn", "subprocess", "subprocess, as somebody"):
            assert told[way] == "EPERM", (thread, way)
        assert told["clone3"] == "ENOSYS"
        assert told["os.system"] != 0
        assert told["ioctl TIOCSTI"] == "EPERM"


def test_without_a_filter_the_same_attempts_reach_the_kernel():
    """The control: what the test above sees is the filter, and not the attempt's arguments."""
    told = confined("AGENT", "control")
    for way in ("clone", "os.fork", "posix_spawn", "subprocess"):
        assert told[way] == "worked", way
    assert told["os.system"] == 0
    if told["unshare"] == "EPERM":
        pytest.skip("the place where this runs refuses unshare by itself: nothing to compare")
    # bpf: kernel.unprivileged_bpf_disabled; TIOCSTI: dev.tty.legacy_tiocsti; fsopen: only for root
    refused = {call for call, result in told.items() if result == "EPERM"}
    assert refused <= {"bpf", "ioctl TIOCSTI", "fsopen"}


def test_threads_sqlite_asyncio_and_sockets_still_work_under_the_agents_filter():
    found = confined("AGENT", "works")
    assert found["thread"] == ["thread"]
    assert found["sqlite"] == [7]
    assert found["asyncio"] == "hello\nthread"
    assert found["socket"] == "x"
    assert found["ioctl"] is False


def test_another_architectures_door_to_the_kernel_is_deadly():
    """Fork by int 0x80 is i386's: the filter would judge its number by the wrong table."""
    if syscall.machine() != "x86_64":
        pytest.skip("only x86-64 has int 0x80")
    code = (
        "import ctypes, mmap\n"
        "from xce_nodeagent.privileged import seccomp\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        # push rbx; mov eax, 20 (getpid of i386); int 0x80; pop rbx; ret
        "page.write(bytes.fromhex('53b814000000cd805bc3'))\n"
        "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "seccomp.install(seccomp.AGENT)\n"
        "ctypes.CFUNCTYPE(ctypes.c_int)(address)()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -signal.SIGSYS
