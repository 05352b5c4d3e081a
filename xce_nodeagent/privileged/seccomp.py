"""Seccomp filters: which system calls a process of ours refuses itself, for ever.

`assemble` is pure: it gives the classic BPF instructions of a filter. `install` hands them to the
kernel (seccomp(2)). What is refused fails with EPERM and not with a signal, so that a library that
tries and copes goes on, and a test can see it.

Why these calls. Without fork and execve there is no other program to be; without `unshare`, `clone`
of namespaces and the mount calls a process cannot get a full capability set in a user namespace of
its own; `io_uring` would make calls that no filter sees; `ptrace`, `process_vm_*` and
`pidfd_getfd` act through another process. TIOCSTI and TIOCLINUX push bytes into the terminal of
whoever started us by hand.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import NamedTuple

from xce_nodeagent.privileged import syscall

PROGRAMS = frozenset({"fork", "vfork", "execve", "execveat"})
"""Beside these, clone is refused without CLONE_THREAD, and clone3 always (ENOSYS: its flags are
behind a pointer, where a filter cannot look; libc then takes clone)."""

NAMESPACES = frozenset({
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "fsopen", "fsmount", "fsconfig",
    "fspick", "move_mount", "open_tree", "open_tree_attr", "mount_setattr",
})  # fmt: skip
PROCESSES = frozenset({"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"})
KERNEL = frozenset({
    "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "keyctl", "add_key", "request_key", "init_module", "finit_module", "delete_module",
    "create_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct",
    "quotactl", "quotactl_fd", "syslog", "open_by_handle_at", "iopl", "ioperm", "modify_ldt",
    "sethostname", "setdomainname", "settimeofday", "clock_settime", "_sysctl",
})  # fmt: skip
SOCKETS = frozenset({"socket", "socketpair", "connect", "bind", "listen"})

SIGNALS = frozenset({
    "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal",
})  # fmt: skip
"""What a binder refuses as well once the one before it has ended, where it may end no processes."""

_EVERYBODY = PROGRAMS | NAMESPACES | PROCESSES | KERNEL

AGENT = _EVERYBODY | {"bpf", "kcmp"}
BINDER = _EVERYBODY | SOCKETS | {"kcmp"}
PROBER = _EVERYBODY | SOCKETS | {"bpf", "kcmp"}
WITNESS = _EVERYBODY | SOCKETS | {"bpf"}
RUNNER = (_EVERYBODY - PROGRAMS) | {"bpf", "kcmp"}
"""It starts a program, which inherits this."""

SUPERVISOR = _EVERYBODY - {"fork", "vfork"}
"""Its children inherit it, so it refuses nothing that one of them needs. It is the only one that
forks. Where a site's program is to be run, it lets that be started (PROGRAMS): all others but the
runner still refuse it themselves."""

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
X32_BIT = 0x4000_0000  # x32 calls have numbers of their own: a second door to the same kernel

# struct seccomp_data (linux/seccomp.h): offsets of what a filter may load, low words
_NR, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24
_CLONE_THREAD = 0x10000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_RESULTS = {
    "allow": _ALLOW,
    "eperm": _ERRNO | errno.EPERM,
    "enosys": _ERRNO | errno.ENOSYS,
    "kill": _KILL_PROCESS,
}


class Instruction(NamedTuple):
    """struct sock_filter: a jump goes `jt` or `jf` instructions further than the next."""

    code: int
    jt: int
    jf: int
    k: int


class _Line(NamedTuple):
    """An instruction before jumps are resolved: `then` and `other` are labels, "" is the next."""

    code: int
    k: int
    then: str = ""
    other: str = ""
    label: str = ""


def assemble(refused: frozenset[str], arch: str, *, forks: bool = False) -> tuple[Instruction, ...]:
    """Give the filter that refuses these calls on `arch`.

    Unless `forks`, it also refuses the variants of clone that make a process.
    """
    lines = [_Line(_LOAD, _ARCH), _Line(_JEQ, AUDIT_ARCH[arch], "", "kill"), _Line(_LOAD, _NR)]
    if arch == "x86_64":
        lines.append(_Line(_JGE, X32_BIT, "eperm"))
    numbers = {syscall.number(name, arch) for name in refused}
    lines += [_Line(_JEQ, found, "eperm") for found in sorted(n for n in numbers if n is not None)]
    clones = () if forks else (("clone3", "enosys"), ("clone", "clone"))
    for name, label in (*clones, ("ioctl", "ioctl")):
        found = syscall.number(name, arch)
        if found is not None:
            lines.append(_Line(_JEQ, found, label))
    lines += [
        _Line(_RETURN, _ALLOW, label="allow"),
        _Line(_LOAD, _ARG0, label="clone"),
        _Line(_JSET, _CLONE_THREAD, "allow2", "eperm"),
        _Line(_LOAD, _ARG1, label="ioctl"),
        _Line(_JEQ, _TIOCSTI, "eperm"),
        _Line(_JEQ, _TIOCLINUX, "eperm"),
        # Jumps go forward only, so what comes after the first `allow` needs one of its own.
        _Line(_RETURN, _ALLOW, label="allow2"),
        _Line(_RETURN, _RESULTS["eperm"], label="eperm"),
        _Line(_RETURN, _RESULTS["enosys"], label="enosys"),
        _Line(_RETURN, _RESULTS["kill"], label="kill"),
    ]
    places = {line.label: place for place, line in enumerate(lines) if line.label}

    def distance(place: int, label: str) -> int:
        return places[label] - place - 1 if label else 0

    return tuple(
        Instruction(line.code, distance(place, line.then), distance(place, line.other), line.k)
        for place, line in enumerate(lines)
    )


_SET_MODE_FILTER = 1
_TSYNC = 1  # every thread of the process, not only this one
_SPEC_ALLOW = 4
# Before Linux 5.16 a filter also turned speculative store bypass off, which slows an interpreter
# down; we run no code but our own, so there is nobody to guard against (spec_ctrl.rst).
_PR_SET_NO_NEW_PRIVS = 38


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def install(refused: frozenset[str], *, forks: bool = False) -> None:
    """Refuse these calls from now on, in every thread and every child. It cannot be undone.

    Raise OSError when the kernel does not take the filter, or not for every thread.
    """
    program = assemble(refused, syscall.machine(), forks=forks)
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    given = _Program(len(program), ctypes.addressof(buffer))
    syscall.prctl(_PR_SET_NO_NEW_PRIVS, 1)
    flags = _TSYNC | _SPEC_ALLOW
    thread = syscall.call("seccomp", _SET_MODE_FILTER, flags, ctypes.byref(given))
    if thread:  # seccomp(2): the id of a thread that could not be brought along
        raise OSError(errno.ESRCH, f"thread {thread} does not take the filter")
