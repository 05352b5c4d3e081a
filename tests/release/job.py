"""A process of a job: reads what to do, a line for each, and says how it went."""

import array
import ctypes
import errno
import os
import signal
import socket
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_uint64
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
cgroup, uid = sys.argv[1], int(sys.argv[2])
if cgroup:
    with open(cgroup + "/cgroup.procs", "w") as procs:
        procs.write("0")
if uid:
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
held, maps, servers, ends = [], [], [], {}


def _open(path):
    held.append(os.open(path, os.O_RDWR))


def _path(path):
    held.append(os.open(path, os.O_PATH))


def _map(path):
    # Python's own mmap keeps a duplicate of the descriptor.
    fd = os.open(path, os.O_RDWR)
    private, read, failed = 2, 1, 2**64 - 1
    place = LIBC.mmap(None, 4096, read, private, fd, 0)
    os.close(fd)
    if place == failed:
        raise OSError(ctypes.get_errno(), "mmap")
    maps.append(place)


def _close():
    while held:
        os.close(held.pop())
    while maps:
        LIBC.munmap(maps.pop(), 4096)


def _serve(path):
    servers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    servers[-1].bind(path)
    servers[-1].listen()


def _connect(path):
    ends["peer"] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends["peer"].connect(path)


def _accept():
    ends["peer"] = servers[-1].accept()[0]


def _send():
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", held[-1:]))
    ends["peer"].sendmsg([b"x"], [rights])


def _take():
    _, fds, _, _ = socket.recv_fds(ends["peer"], 1, 4)
    held.extend(fds)


def _listen(port):
    servers.append(socket.create_server(("127.0.0.1", int(port))))


def _ignore():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _child(where=""):
    """Leave a child behind, which sleeps, in a cgroup of its own if one is named."""
    if (pid := os.fork()) == 0:
        if where:
            with open(where + "/cgroup.procs", "w") as procs:
                procs.write("0")
        os.close(1)
        while True:
            signal.pause()
    return str(pid)


def _zombie():
    """Have a child that has ended and is not waited for."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return str(pid)


def _bomb(most):
    """Fork for ever: each that ends is followed by others, some hundred at a time."""
    if os.fork() == 0:
        os.close(1)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            try:
                if os.fork() == 0 and os.fork() == 0:
                    os._exit(0)
            except OSError:
                pass
            with open("/proc/loadavg") as load:
                if int(load.read().split()[3].partition("/")[2]) > int(most):
                    os._exit(0)


ACTIONS = {
    "open": _open, "path": _path, "map": _map, "close": _close, "serve": _serve,
    "connect": _connect, "accept": _accept, "send": _send, "take": _take, "listen": _listen,
    "ignore": _ignore, "child": _child, "zombie": _zombie, "bomb": _bomb,
    "hello": lambda: "hello",
}  # fmt: skip
for line in sys.stdin:
    action, *words = line.split()
    try:
        answer = ACTIONS[action](*words) or "ok"
    except OSError as error:
        answer = errno.errorcode[error.errno]
    os.write(1, answer.encode() + b"\n")
