"""The zygote: imports the product once, as root, and forks every process that the harness needs.

What it forks are the real programs, from their `main` on: they give up root, install their filter,
open the ledger, load BPF, exactly as `xce-nodeagent run` does. Only three things differ from a
start by execve: the imports are there already, the functions of `points.py` are wrapped, and the
waits of `HURRIED` are short, because an hour has only so many of them.

It obeys the harness over a socket, reaps nobody unless it is told to (so a pid stays its own), and
when the harness goes, in whatever way, it kills the cgroup that all of this lives in.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak import page, points
from soak.page import Page
from soak.planted import PLANTED

from xce_nodeagent.errors import AgentError

AGENT_UID = 61499
_IMPORTED = (
    "asyncio", "concurrent.futures.thread", "xce_nodeagent.discovery", "xce_nodeagent.daemon.app",
    "xce_nodeagent.daemon.helpers", "xce_nodeagent.daemon.loop", "xce_nodeagent.daemon.server",
    "xce_nodeagent.host.udev", "xce_nodeagent.providers", "xce_nodeagent.providers.simulated",
)  # fmt: skip

HURRIED: tuple[tuple[str, str, object], ...] = (
    ("xce_nodeagent.daemon.fencing", "BINDER_SECONDS", 0.5),
    ("xce_nodeagent.daemon.vendor", "PATIENCE", 0.5),
    ("xce_nodeagent.binding.cleaning", "SECONDS", 0.05),
    ("xce_nodeagent.binding.cleaning", "LONGEST", 0.3),
    ("xce_nodeagent.binding.outcome", "FLUSH_SECONDS", 0.05),
    ("xce_nodeagent.binding.vigil", "SECONDS", 0.1),
    ("xce_nodeagent.binding.vigil", "SHARE", 1.0),
    ("xce_nodeagent.binding.vigil", "AWAY_SECONDS", 0.2),
    ("xce_nodeagent.binding.supply", "PAUSE", 0.005),
    ("xce_nodeagent.privileged.supervisor", "SETTLED", 0.0),
    # The limit of helpers in a time is against an agent in a loop; here we are the loop.
    ("xce_nodeagent.privileged.nursery", "GIVEN_WITHIN", 0.0),
)
"""Module, constant, value. A constant that is not there any more fails at the start."""

LOG_BYTES = 1 << 18
"""The write-ahead log's first size: 16 MiB would be written anew for each of 10,000 starts."""

_CLONE_INTO_CGROUP = 0x2_0000_0000
_CLONE3 = 435
_CLONE_NEWNET = 0x4000_0000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # netdevice(7)
_SWEEP_SECONDS = 0.004


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    shared = Page(int(sys.argv[2]))
    own_cgroup, plant = sys.argv[3:5]
    _own_network()
    for name in _IMPORTED:
        importlib.import_module(name)
    _scan_once()
    _hurry()
    if plant:
        PLANTED[plant]()
    hit = points.Hit(shared)
    points.install(hit)
    _follow_roles(hit)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control.send(b"{}")
    while data := control.recv(1 << 20):
        order = json.loads(data)
        control.send(json.dumps(_obey(order, hit, shared)).encode())
    with contextlib.suppress(OSError):
        Path(own_cgroup, "cgroup.kill").write_text("1", "ascii")


def _own_network() -> None:
    """Have a loopback of its own: ports that somebody else listens on are none of ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
        fcntl.ioctl(some, _SIOCSIFFLAGS, struct.pack("=16sH14x", b"lo", _IFF_UP))


def _scan_once() -> None:
    """Import what only a scan imports."""
    from xce_nodeagent import discovery, providers  # noqa: PLC0415  # after the list above
    from xce_nodeagent.host import Host  # noqa: PLC0415  # after the list above

    host = Host(simulate="dgx-h100", port_range=(21700, 21701))
    host.probe = lambda _: ("not_yet", "", {})
    discovery.scan(host, providers.all_providers())


def _hurry() -> None:
    for module, name, value in HURRIED:
        found = importlib.import_module(module)
        if not hasattr(found, name):
            raise LookupError(f"tests/soak/zygote.py shortens {module}.{name}, which is not there")
        setattr(found, name, value)
    ledger = importlib.import_module("xce_nodeagent.binding.ledger")
    defaults = ledger.Ledger.__init__.__kwdefaults__
    if "log_bytes" not in defaults:
        raise LookupError(
            "tests/soak/zygote.py shortens the ledger's log_bytes, which is not there"
        )
    defaults["log_bytes"] = LOG_BYTES


def _follow_roles(hit: points.Hit) -> None:
    """Let a helper know its role when it becomes one; it is forked by the supervisor."""
    nursery = importlib.import_module("xce_nodeagent.privileged.nursery")
    become = nursery.become

    def noted(role: Any, *rest: Any) -> int:
        hit.become(role.name)
        return int(become(role, *rest))

    nursery.become = noted


def _obey(order: dict[str, Any], hit: points.Hit, shared: Page) -> dict[str, Any]:
    match order["do"]:
        case "reap":
            _, status = os.waitpid(order["pid"], 0)
            return {"code": os.waitstatus_to_exitcode(status)}
        case "agent":
            return {"pid": _fork(lambda: _agent(order, hit), order["log"])}
        case "supervisor":
            return {"pid": _fork(lambda: _supervisor(order, hit), order["log"])}
        case "prisoner":
            into = order["cgroup"] if order["inside"] and order["backend"] == "cgroup2" else ""
            return {"pid": _fork(lambda: _prisoner(order, shared), order["log"], into)}
    raise AssertionError(order)


def _fork(work: Callable[[], int], log: str, into: str = "") -> int:
    pid = _clone_into(into) if into else os.fork()
    if pid:
        return pid
    status = 70
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        with open(log, "ab", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        status = work()
    except AgentError as error:  # as the command says it
        os.write(2, f"{error.message}\n".encode())
        status = error.exit_status
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # nothing may return into the zygote's loop
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _clone_into(cgroup: str) -> int:
    """Fork into a cgroup of v2, which is what a worker does (clone3(2), CLONE_INTO_CGROUP)."""
    descriptor = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        arguments = struct.pack(
            "=11Q", _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, descriptor
        )
        buffer = ctypes.create_string_buffer(arguments, len(arguments))
        libc = ctypes.CDLL(None, use_errno=True)
        pid = int(libc.syscall(ctypes.c_long(_CLONE3), buffer, ctypes.c_long(len(arguments))))
        if pid < 0:
            raise OSError(ctypes.get_errno(), f"clone3 into {cgroup}")
        return pid
    finally:
        os.close(descriptor)


def _compose(order: dict[str, Any]) -> None:
    """Give a process its environment, its boot, and a kernel without the shared program if asked.

    A reboot is another boot id; it comes to the agent through `Host`, as the real one does.
    """
    os.environ.update(order["env"])
    host = importlib.import_module("xce_nodeagent.host")
    host.Host.boot_id = lambda _: order["boot"]
    if order["per_job"]:
        fence2 = importlib.import_module("xce_nodeagent.privileged.fence2")

        def refuse(*_: object) -> None:
            raise OSError(22, "as a kernel without cgroup storage says")

        fence2.SharedFence.take = refuse


def _agent(order: dict[str, Any], hit: points.Hit) -> int:
    hit.become("agent")
    _compose(order)
    app = importlib.import_module("xce_nodeagent.daemon.app")
    if order["shape"] == "systemd":
        os.setgroups([])
        os.setresgid(AGENT_UID, AGENT_UID, AGENT_UID)
        os.setresuid(AGENT_UID, AGENT_UID, AGENT_UID)
    else:
        app._start_supervisor = lambda where, _: _own_supervisor(app, where, order, hit)
    return int(app.main(config=None, simulate=order["simulate"], verbose=False))


def _own_supervisor(
    app: Any, where: Any, order: dict[str, Any], hit: points.Hit
) -> tuple[socket.socket, int]:
    """Start the supervisor as `run` by hand does, by a fork in the place of a spawn."""
    channel = importlib.import_module("xce_nodeagent.privileged.channel")
    ours, theirs = channel.pair()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            ours.close()
            hit.become("supervisor")
            helpers = importlib.import_module("xce_nodeagent.daemon.helpers")
            folder = str(app.helpers_socket(where).parent)
            status = helpers.main(
                ["--fd", str(theirs.detach()), "--folder", folder, "--simulate", order["simulate"]]
            )
        except BaseException:  # noqa: BLE001  # as at the end of a program
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    theirs.close()
    return ours, pid


def _supervisor(order: dict[str, Any], hit: points.Hit) -> int:
    hit.become("supervisor")
    _compose(order)
    helpers = importlib.import_module("xce_nodeagent.daemon.helpers")
    arguments = ["--socket", "--folder", order["folder"], "--simulate", order["simulate"]]
    return int(helpers.main(arguments))


def _prisoner(order: dict[str, Any], shared: Page) -> int:
    """Try to open every device, again and again; note each one that should have been closed.

    With `stubborn` it does not end by SIGTERM; on `ports` it listens; if it is `restless` it makes
    no pause, and sees what is open for less than a millisecond.
    """
    if order["stubborn"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if order["inside"] and order["backend"] == "cgroup1":
        Path(order["cgroup"], "cgroup.procs").write_text("0", "ascii")
    listening = [socket.create_server(("127.0.0.1", port)) for port in order["ports"]]
    assert len(listening) == len(order["ports"])  # they are open as long as this runs
    paths, slot = order["paths"], order["number"]
    at = page.prisoner(slot)
    words = shared.words
    flags = (os.O_RDWR | os.O_NONBLOCK, os.O_RDONLY | os.O_NONBLOCK)

    def let_by(path: str, how: int) -> bool:
        try:
            os.close(os.open(path, how))
        except PermissionError:
            return False
        except OSError as error:
            return error.errno == 6  # ENXIO: past the fence there is no driver
        return True

    if order["restless"]:
        os.nice(5)  # it may have what nobody else wants: the others are what is looked at
    sweep = 0
    while True:
        asked = words[at + page.WANTED]
        found = [0] * 8
        how = flags[0] if asked != words[at + page.LOOKED] else flags[sweep & 1]
        for number, path in enumerate(paths):
            let = words[at + page.LET]
            if not let_by(path, how):
                continue
            found[number >> 5] |= 1 << (number & 31)
            if shared.is_breach(slot, number, let):
                words[at + page.BREACH] = number
                words[at + page.BREACHES] += 1
        words[at + page.COULD : at + page.COULD + 8] = memoryview(struct.pack("=8I", *found)).cast(
            "I"
        )
        words[at + page.LOOKED] = asked
        words[at + page.SWEEPS] += 1
        sweep += 1
        if words[at + page.WANTED] == asked and not order["restless"]:
            time.sleep(_SWEEP_SECONDS)


if __name__ == "__main__":
    main()
