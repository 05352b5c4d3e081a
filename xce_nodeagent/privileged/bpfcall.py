"""The bpf(2) system call: maps, programs and attachments, through ctypes.

Every function raises OSError with what was tried; its errno is the kernel's. What returns a
descriptor gives it to the caller, who closes it: a program or map lives as long as anybody holds
one, so a forgotten descriptor keeps a fence's maps for ever.

Layout of `union bpf_attr`: linux/bpf.h. The buffer is 128 zeroed bytes for every command: kernels
refuse unknown bytes that are not zero, take zeroed ones of any length, and some 6.17 kernels write
the answer of QUERY up to byte 64 whatever length they were told.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from xce_nodeagent.privileged import syscall

HASH = 1  # BPF_MAP_TYPE_HASH
CGROUP_STORAGE = 19  # BPF_MAP_TYPE_CGROUP_STORAGE
NO_PREALLOC = 1  # BPF_F_NO_PREALLOC
EXIST = 2  # BPF_EXIST

MULTI = 2  # BPF_F_ALLOW_MULTI
REPLACE = 4  # BPF_F_REPLACE

_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_NEXT, _PROG_LOAD = range(6)
_PROG_ATTACH, _PROG_DETACH = 8, 9
_PROG_GET_FD_BY_ID, _MAP_GET_FD_BY_ID, _GET_INFO = 13, 14, 15
_PROG_QUERY, _PROG_BIND_MAP = 16, 35

_PROG_TYPE_CGROUP_DEVICE = 15
_CGROUP_DEVICE = 6  # enum bpf_attach_type

_ATTR_SIZE = 128
_LOG_SIZE = 1 << 20
_ATTACHED_LIMIT = 64  # BPF_CGROUP_MAX_PROGS: the kernel takes no more on one cgroup
_EFFECTIVE = 1  # BPF_F_QUERY_EFFECTIVE
_EFFECTIVE_LIMIT = 4096  # 64 cgroups, one in the other, each of them full
_LOAD_TRIES = 8

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_number = syscall.number("bpf", syscall.machine())

_Attr = ctypes.c_char * _ATTR_SIZE


class ProgramInfo(NamedTuple):
    """What the kernel says of a program. The tag is a hash of its instructions without maps."""

    id: int
    tag: bytes
    name: str
    map_ids: tuple[int, ...]


class MapInfo(NamedTuple):
    """What the kernel says of a map."""

    id: int
    type: int
    key_size: int
    value_size: int
    name: str


class Attached(NamedTuple):
    """The device programs of a cgroup: their ids, and the flags of their attachment."""

    ids: tuple[int, ...]
    flags: int


def _call(command: int, attr: ctypes.Array[ctypes.c_char], what: str) -> int:
    result: int = _syscall(_number, command, attr, _ATTR_SIZE)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf(2): {what}: {os.strerror(number)}")
    return result


def _descriptor(fd: int) -> int:
    """Keep descriptor 0 out of use: in `union bpf_attr` it means that there is none."""
    if fd:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def _buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * len(data)).from_buffer_copy(data)


# ---- maps -----------------------------------------------------------------------------------


def map_create(
    kind: int, name: str, *, key_size: int, value_size: int, max_entries: int, flags: int = 0
) -> int:
    """Make a map; give its descriptor."""
    attr = _Attr()
    struct.pack_into("=5I", attr, 0, kind, key_size, value_size, max_entries, flags)
    struct.pack_into("=15s", attr, 28, name.encode())
    return _descriptor(_call(_MAP_CREATE, attr, f"create the map {name}"))


def map_lookup(fd: int, key: bytes, value_size: int) -> bytes | None:
    """Read a value; None when the key is absent."""
    attr, at, value = _Attr(), _buffer(key), (ctypes.c_char * value_size)()
    struct.pack_into("=IxxxxQQ", attr, 0, fd, ctypes.addressof(at), ctypes.addressof(value))
    try:
        _call(_MAP_LOOKUP, attr, "look up in a map")
    except FileNotFoundError:
        return None
    return value.raw


def map_update(fd: int, key: bytes, value: bytes, flags: int = 0) -> None:
    """Write a value. For cgroup storage the kernel swaps the whole value under RCU."""
    attr, at, new = _Attr(), _buffer(key), _buffer(value)
    struct.pack_into("=IxxxxQQQ", attr, 0, fd, ctypes.addressof(at), ctypes.addressof(new), flags)
    _call(_MAP_UPDATE, attr, "update a map")


def map_delete(fd: int, key: bytes) -> None:
    """Remove a key; one that is absent is fine."""
    attr, at = _Attr(), _buffer(key)
    struct.pack_into("=IxxxxQ", attr, 0, fd, ctypes.addressof(at))
    try:
        _call(_MAP_DELETE, attr, "delete from a map")
    except FileNotFoundError:
        return


def map_keys(fd: int, key_size: int) -> Iterator[bytes]:
    """Walk over the keys of a map that nobody else changes meanwhile."""
    attr, following = _Attr(), (ctypes.c_char * key_size)()
    at: ctypes.Array[ctypes.c_char] | None = None
    while True:
        here = ctypes.addressof(at) if at is not None else 0
        struct.pack_into("=IxxxxQQ", attr, 0, fd, here, ctypes.addressof(following))
        try:
            _call(_MAP_NEXT, attr, "walk over a map")
        except FileNotFoundError:
            return
        at = _buffer(following.raw)
        yield following.raw


# ---- programs -------------------------------------------------------------------------------


def prog_load(code: bytes, name: str) -> int:
    """Load a device program; give its descriptor. The error quotes the verifier's last words."""
    insns, licence = _buffer(code), _buffer(b"GPL\0")
    attr = _Attr()
    struct.pack_into(
        "=IIQQ",
        attr,
        0,
        _PROG_TYPE_CGROUP_DEVICE,
        len(code) // 8,
        ctypes.addressof(insns),
        ctypes.addressof(licence),
    )
    struct.pack_into("=15s", attr, 48, name.encode())
    struct.pack_into("=I", attr, 68, _CGROUP_DEVICE)
    try:
        return _load(attr, name)
    except OSError as error:
        # The log costs time, so only a refused program is loaded again with it.
        log = (ctypes.c_char * _LOG_SIZE)()
        struct.pack_into("=IIQ", attr, 24, 1, _LOG_SIZE, ctypes.addressof(log))
        with contextlib.suppress(OSError):  # the first error stays the one that is told
            return _load(attr, name)
        words = " | ".join(log.value.decode("utf-8", "replace").split("\n")[-4:]).strip(" |")
        why = f"{error.strerror}: {words}" if words else error.strerror
        raise OSError(error.errno, why) from error


def _load(attr: ctypes.Array[ctypes.c_char], name: str) -> int:
    for _ in range(_LOAD_TRIES):
        try:
            return _descriptor(_call(_PROG_LOAD, attr, f"load the program {name}"))
        except BlockingIOError:
            continue  # EAGAIN: a signal came while the verifier ran
    return _descriptor(_call(_PROG_LOAD, attr, f"load the program {name}"))


def prog_open(program_id: int) -> int:
    """Give a descriptor of a program that is loaded."""
    attr = _Attr()
    struct.pack_into("=I", attr, 0, program_id)
    return _descriptor(_call(_PROG_GET_FD_BY_ID, attr, f"open program {program_id}"))


def map_open(map_id: int) -> int:
    """Give a descriptor of a map."""
    attr = _Attr()
    struct.pack_into("=I", attr, 0, map_id)
    return _descriptor(_call(_MAP_GET_FD_BY_ID, attr, f"open map {map_id}"))


def bind_map(prog_fd: int, map_fd: int) -> None:
    """Tie a map to a program that does not use it (kernel 5.10); doing it twice is fine."""
    attr = _Attr()
    struct.pack_into("=II", attr, 0, prog_fd, map_fd)
    _call(_PROG_BIND_MAP, attr, "bind a map to a program")


def _info(fd: int, info: ctypes.Array[ctypes.c_char], what: str) -> None:
    attr = _Attr()
    struct.pack_into("=IIQ", attr, 0, fd, len(info), ctypes.addressof(info))
    _call(_GET_INFO, attr, what)


def prog_info(fd: int) -> ProgramInfo:
    """Describe a program; its map ids are those of bound maps too."""
    ids = (ctypes.c_uint32 * 64)()  # MAX_USED_MAPS
    info = (ctypes.c_char * 256)()
    struct.pack_into("=IQ", info, 52, len(ids), ctypes.addressof(ids))
    _info(fd, info, "describe a program")
    program_id, tag = struct.unpack_from("=I8s", info, 4)
    (count,) = struct.unpack_from("=I", info, 52)
    (name,) = struct.unpack_from("=16s", info, 64)
    return ProgramInfo(program_id, tag, name.rstrip(b"\0").decode(), tuple(ids[:count]))


def map_info(fd: int) -> MapInfo:
    """Describe a map."""
    info = (ctypes.c_char * 128)()
    _info(fd, info, "describe a map")
    kind, map_id, key_size, value_size = struct.unpack_from("=4I", info, 0)
    (name,) = struct.unpack_from("=16s", info, 24)
    return MapInfo(map_id, kind, key_size, value_size, name.rstrip(b"\0").decode())


# ---- attachments ----------------------------------------------------------------------------


def attach(cgroup_fd: int, prog_fd: int, replaced_fd: int | None = None) -> None:
    """Attach a program beside others (ALLOW_MULTI), or swap it for one that is attached."""
    flags = MULTI if replaced_fd is None else MULTI | REPLACE
    attr = _Attr()
    struct.pack_into("=5I", attr, 0, cgroup_fd, prog_fd, _CGROUP_DEVICE, flags, replaced_fd or 0)
    _call(_PROG_ATTACH, attr, "attach a program" if replaced_fd is None else "replace a program")


def detach(cgroup_fd: int, prog_fd: int) -> None:
    """Detach a program; raise FileNotFoundError when it is not attached."""
    attr = _Attr()
    struct.pack_into("=3I", attr, 0, cgroup_fd, prog_fd, _CGROUP_DEVICE)
    _call(_PROG_DETACH, attr, "detach a program")


def query(cgroup_fd: int) -> Attached:
    """List the device programs attached to a cgroup."""
    return _query(cgroup_fd, 0, _ATTACHED_LIMIT)


def effective(cgroup_fd: int) -> tuple[int, ...]:
    """List the device programs that judge a cgroup's processes, with those of cgroups above it."""
    try:
        return _query(cgroup_fd, _EFFECTIVE, _ATTACHED_LIMIT).ids
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    return _query(cgroup_fd, _EFFECTIVE, _EFFECTIVE_LIMIT).ids


def _query(cgroup_fd: int, flags: int, limit: int) -> Attached:
    ids = (ctypes.c_uint32 * limit)()
    attr = _Attr()
    where = ctypes.addressof(ids)
    struct.pack_into("=4IQI", attr, 0, cgroup_fd, _CGROUP_DEVICE, flags, 0, where, limit)
    _call(_PROG_QUERY, attr, "list the programs of a cgroup")
    (flags,) = struct.unpack_from("=I", attr, 12)
    (count,) = struct.unpack_from("=I", attr, 24)
    return Attached(tuple(ids[:count]), flags)
