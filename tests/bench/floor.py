"""The floor: what one prepare costs when the same architecture is written by hand.

Client, server, pre-spawned helper; JSON ended by NUL on a Unix stream socket; one record of 512
bytes and fdatasync before anything is done; mkdir of a cgroup v2, attach of a device program that
is loaded already, one update of its policy; the answer is of the same size as the product's. It
checks nothing, recovers nothing and shares no code with the product, on purpose; that takes 97
lines of code. Each client has one call at a time on its way, which arrives whole.

    floor.py SOCKET RECORDS CGROUP ANSWERS      (the socket's appearance says that it serves)

ANSWERS is JSON: for a job with N instances, "N" holds the reply's parameters.
"""

import ctypes
import json
import os
import select
import socket
import struct
import sys

MAJOR = 121  # for local use; the policy rules over this major's minors 0 to 255
POLICY_BYTES = 776  # 64 grants of 12 bytes and a count, as a real policy has
LIBC = ctypes.CDLL(None, use_errno=True)
BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]


def bpf(command: int, attributes: bytes) -> int:
    """Call the kernel. Every command takes a zeroed buffer that is longer than it needs."""
    buffer = ctypes.create_string_buffer(attributes, 144)
    result: int = LIBC.syscall(BPF, command, buffer, 144)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command}): {os.strerror(ctypes.get_errno())}")
    return result


def load() -> tuple[int, int]:
    """Load the program: a minor of MAJOR is allowed if the cgroup's policy has a 1 for it."""
    storage = bpf(0, struct.pack("<4I", 19, 8, POLICY_BYTES, 0))  # BPF_MAP_TYPE_CGROUP_STORAGE
    code = [
        (0xBF, 0x16, 0, 0), (0x61, 0x62, 4, 0),  # r6 = context (type, major, minor), r2 = major
        (0x55, 0x02, 10, MAJOR),  # not ours: allow
        (0x61, 0x67, 8, 0), (0x57, 0x07, 0, 255),  # r7 = minor & 255
        (0x18, 0x11, 0, storage), (0, 0, 0, 0),  # r1 = the map (two slots)
        (0xB7, 0x02, 0, 0), (0x85, 0x00, 0, 81),  # r0 = get_local_storage(r1, 0)
        (0x0F, 0x70, 0, 0), (0x71, 0x00, 0, 0), (0x57, 0x00, 0, 1),  # r0 = policy[minor] & 1
        (0x95, 0x00, 0, 0),
        (0xB7, 0x00, 0, 1), (0x95, 0x00, 0, 0),  # allow
    ]  # fmt: skip
    packed = ctypes.create_string_buffer(b"".join(struct.pack("<BBhi", *one) for one in code))
    licence = ctypes.create_string_buffer(b"GPL")
    where = struct.pack("<QQ", ctypes.addressof(packed), ctypes.addressof(licence))
    return storage, bpf(5, struct.pack("<II", 15, len(code)) + where)  # BPF_PROG_TYPE_CGROUP_DEVICE


def helper(channel: socket.socket, root: str) -> None:
    """Do what the server asks until it goes away."""
    storage, program = load()
    channel.send(b"ready")
    while message := channel.recv(65536):
        order = json.loads(message)
        path = f"{root}/{order['job']}"
        if order["op"] == "bind":
            os.mkdir(path)
            cgroup = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            bpf(8, struct.pack("<4I", cgroup, program, 6, 2))  # PROG_ATTACH, DEVICE, ALLOW_MULTI
            os.close(cgroup)
        policy = bytes(minor in order["minors"] for minor in range(256))
        value = ctypes.create_string_buffer(policy, POLICY_BYTES)
        key = ctypes.create_string_buffer(struct.pack("<Q", os.stat(path).st_ino), 8)
        where = struct.pack("<QQ", ctypes.addressof(key), ctypes.addressof(value))
        bpf(2, struct.pack("<II", storage, 0) + where)  # MAP_UPDATE_ELEM
        if order["op"] == "unbind":
            os.rmdir(path)
        channel.send(json.dumps({"cgroup": path}).encode())


def main(where: str, records: str, root: str, answers: str) -> None:
    """Serve until the process is ended."""
    with open(answers, "rb") as file:
        replies = json.load(file)
    log = os.open(records, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        helper(theirs, root)
        os._exit(0)
    theirs.close()
    if ours.recv(16) != b"ready":
        sys.exit("the floor's helper could not load its program")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{where}.new")
    listener.listen(64)
    os.rename(f"{where}.new", where)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    clients: dict[int, socket.socket] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                client, _ = listener.accept()
                clients[client.fileno()] = client
                poll.register(client, select.EPOLLIN)
            elif data := clients[descriptor].recv(65536):
                call = json.loads(data[:-1])
                asked = call["parameters"]
                held, binding = asked.get("instances", ()), call["method"].endswith(".Prepare")
                order = {"op": "bind" if binding else "unbind", "job": asked["job"]}
                order["minors"] = list(range(len(held) + 4)) if binding else []
                os.write(log, json.dumps(order).encode().ljust(511)[:511] + b"\n")
                os.fdatasync(log)
                ours.send(json.dumps(order).encode())
                done = json.loads(ours.recv(65536))
                reply = {"released": True, "clean": True}
                if binding:
                    reply = replies[str(len(held))] | {"cgroup": {"v2": done["cgroup"]}}
                    reply["job"] = asked["job"]
                wire = json.dumps({"parameters": reply}).encode() + b"\0"
                clients[descriptor].sendall(wire)
            else:
                clients.pop(descriptor).close()


if __name__ == "__main__":
    main(*sys.argv[1:])
