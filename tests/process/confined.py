"""A child of test_seccomp.py: installs a filter, tries what it should refuse, tells as JSON.

With the second argument `works` it tries what must still work; with `control` it tries a harmless
part of the attempts without a filter, to show that they would get through.
"""

# ruff: noqa: S605, S606, T201  # it tries to start programs, and prints what came of it

import asyncio
import ctypes
import ctypes.util
import errno
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading

from xce_nodeagent.privileged import seccomp, syscall

LIBC = ctypes.CDLL(None, use_errno=True)
SIGCHLD = 17
RAW = {
    # Arguments with which an unfiltered kernel would not do anything that matters here.
    "unshare": (0,), "setns": (-1, 0), "bpf": (16, 0, 0), "ptrace": (16, -1, 0, 0), "fork": (),
    "vfork": (), "clone": (SIGCHLD, 0, 0, 0, 0), "clone3": (0, 0), "execve": (0, 0, 0),
    "execveat": (-1, 0, 0, 0, 0), "mount": (0, 0, 0, 0, 0), "umount2": (0, 0), "chroot": (0,),
    "pivot_root": (0, 0), "process_vm_readv": (0, 0, 0, 0, 0, 0), "pidfd_getfd": (-1, -1, 0),
    "process_vm_writev": (0, 0, 0, 0, 0, 0), "io_uring_setup": (0, 0), "userfaultfd": (1 << 30,),
    "io_uring_enter": (-1, 0, 0, 0, 0, 0), "io_uring_register": (-1, 0, 0, 0),
    "perf_event_open": (0, 0, -1, -1, 0), "keyctl": (-1, 0, 0, 0, 0), "add_key": (0, 0, 0, 0, 0),
    "request_key": (0, 0, 0, 0), "open_by_handle_at": (-1, 0, 0), "open_tree": (-1, 0, 1 << 31),
    "move_mount": (-1, 0, -1, 0, 1 << 31), "fsopen": (0, 1 << 31), "fsmount": (-1, 0, 0),
    "fsconfig": (-1, 99, 0, 0, 0), "fspick": (-1, 0, 1 << 31), "mount_setattr": (-1, 0, 0, 0, 0),
    "init_module": (0, 0, 0), "finit_module": (-1, 0, 0), "delete_module": (0, 0),
    "kexec_load": (0, 0, 0, -1), "kexec_file_load": (-1, -1, 0, 0, -1), "reboot": (0, 0, 0, 0),
    "swapon": (0, 0), "swapoff": (0,), "acct": (1,), "quotactl": (-1, 0, 0, 0), "kcmp": (0,) * 5,
    "syslog": (99, 0, 0), "socket": (99, 0, 0), "connect": (-1, 0, 0), "bind": (-1, 0, 0),
    "socketpair": (99, 0, 0, 0), "listen": (-1, 0),
}  # fmt: skip


def raw(name):
    """Call, and give the errno; a child that should not be ends at once."""
    number = syscall.number(name, syscall.machine())
    if number is None:
        return None
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, RAW[name]))
    if name in ("fork", "vfork", "clone") and result == 0:
        os._exit(0)
    return errno.errorcode.get(ctypes.get_errno(), "") if result < 0 else "worked"


def raised(function):
    try:
        function()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "worked"


def tiocsti():
    reader, writer = os.openpty()
    try:
        result = LIBC.ioctl(writer, ctypes.c_ulong(0x5412), b"x")
        return errno.errorcode[ctypes.get_errno()] if result < 0 else "worked"
    finally:
        os.close(reader)
        os.close(writer)


CONTROL = ("unshare", "setns", "bpf", "ptrace", "clone", "execve", "execveat", "open_tree", "kcmp",
           "pidfd_getfd", "io_uring_setup", "process_vm_readv", "fsopen", "socket")  # fmt: skip
true = "/bin/true"


def control():
    found = {name: raw(name) for name in CONTROL}
    found["os.fork"] = raised(lambda: os.fork() or os._exit(0))
    found["posix_spawn"] = raised(lambda: os.posix_spawn(true, [true], {}))
    found["subprocess"] = raised(lambda: subprocess.run([true], check=False))
    found["os.system"] = os.system(true)
    found["ioctl TIOCSTI"] = tiocsti()
    return found


def refusals():
    found = {name: raw(name) for name in RAW}
    found["os.fork"] = raised(os.fork)
    found["os.execv"] = raised(lambda: os.execv(true, [true]))
    found["posix_spawn"] = raised(lambda: os.posix_spawn(true, [true], {}))
    found["subprocess"] = raised(lambda: subprocess.run([true], check=False))
    found["subprocess, as somebody"] = raised(
        lambda: subprocess.run([true], check=False, preexec_fn=int)
    )
    found["os.system"] = os.system(true)
    found["ioctl TIOCSTI"] = tiocsti()
    return found


async def chat():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
    return line.decode() + await asyncio.to_thread(str, "thread")


def works():
    done = []
    thread = threading.Thread(target=done.append, args=("thread",))
    thread.start()
    thread.join()
    with tempfile.TemporaryDirectory() as folder:
        database = sqlite3.connect(f"{folder}/x", isolation_level=None)
        database.execute("pragma journal_mode=wal")
        database.execute("create table t (x)")
        database.execute("insert into t values (7)")
        row = database.execute("select x from t").fetchone()
        database.close()
    one, other = socket.socketpair()
    with one, other:
        one.send(b"x")
        got = other.recv(1)
    return {
        "thread": done, "sqlite": row, "asyncio": asyncio.run(chat()), "socket": got.decode(),
        "ioctl": os.get_blocking(0) and os.isatty(0), "name": ctypes.CDLL(None)._name,
    }  # fmt: skip


def main():
    name, what = sys.argv[1:3]
    if what == "control":
        print(json.dumps(control()))
        return
    started, go, told = threading.Event(), threading.Event(), []

    def second():
        started.set()
        go.wait()
        told.append(refusals())

    thread = threading.Thread(target=second)
    thread.start()
    started.wait()
    seccomp.install(getattr(seccomp, name))
    if what == "works":
        go.set()
        thread.join()
        print(json.dumps(works()))
        return
    mine = refusals()
    go.set()
    thread.join()
    print(json.dumps({"main": mine, "second": told[0]}))


main()
