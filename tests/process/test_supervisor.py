"""The supervisor: who gets a helper, how many there are, and that nothing stays."""

import asyncio
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.supply import Supply, listening
from xce_nodeagent.errors import BadConfig, NotReady
from xce_nodeagent.privileged import door as door_module
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.capability import Capability
from xce_nodeagent.privileged.channel import Channel, encode
from xce_nodeagent.privileged.door import Listening
from xce_nodeagent.privileged.notify import Notify
from xce_nodeagent.privileged.nursery import GIVEN_LIMIT
from xce_nodeagent.privileged.supervisor import Supervisor

SOCKET = ("--socket", "FOLDER/helpers.sock")


def dial(one):
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.settimeout(10)
    end.connect(str(one.folder / "helpers.sock"))
    return end


def up(one):
    one.until(lambda: len(one.children()) == 3 and one.descriptors(), "three spares")
    return set(one.children())


def given(end, role):
    """Ask for a helper; give its pid and socket."""
    end.send(encode(ops.Next(role)))
    packet = Channel(end).receive()
    assert packet is not None
    (descriptor,) = packet.descriptors
    return socket.socket(fileno=descriptor)


def test_the_socket_outlives_the_agent_and_the_agents_helpers_do_not(stage):
    one = stage(*SOCKET)
    up(one)
    for _ in range(3):
        with dial(one) as end:
            helpers = [given(end, role) for role in ("binder", "prober", "witness")]
            one.until(lambda: len(one.children()) == 6, "live and spare of each")
            for helper in helpers:
                helper.close()
        up(one)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(10) == 0


def test_a_helper_that_hangs_when_its_agent_has_gone_is_killed(stage):
    one = stage(*SOCKET, "--grace", "0.3")
    before = up(one)
    with dial(one) as end, given(end, "witness"):
        live = before & set(one.children())
        (pid,) = [
            pid for pid in live if Path(f"/proc/{pid}/comm").read_text("ascii") == "xce-witness\n"
        ]
        os.kill(pid, signal.SIGSTOP)
    one.until(lambda: pid not in one.children(), "the stopped one was killed")
    up(one)
    assert f"witness {pid} does not end by itself: killed" in one.log.read_text()


def test_a_second_agent_is_refused_while_the_first_is_there(stage):
    one = stage(*SOCKET)
    up(one)
    with dial(one) as first:
        given(first, "witness").close()
        with dial(one) as second:
            assert second.recv(100) == b""
        given(first, "witness").close()
    assert "second agent" in one.log.read_text()


@pytest.mark.parametrize(
    "packet",
    [b"\xc1", encode(ops.Take()), encode(ops.Next("binder"))[:-1], b"x" * (ops.MESSAGE_LIMIT + 1)],
)
def test_whatever_is_not_next_ends_the_connection_and_not_the_supervisor(stage, packet):
    one = stage(*SOCKET)
    up(one)
    with dial(one) as end:
        end.send(packet)
        assert end.recv(100) == b""
    with dial(one) as end:
        given(end, "binder").close()
    assert "violation by the agent" in one.log.read_text()


def test_a_descriptor_that_comes_with_next_is_closed(stage):
    one = stage(*SOCKET)
    up(one)
    before = one.descriptors()
    for message in (encode(ops.Next("binder")), b"\xc1", encode(ops.Take())):
        with dial(one) as end:
            try:
                socket.send_fds(end, [message], [0])
            except PermissionError:  # Linux 6.16: such an end takes none
                end.send(b"\xc1")
            assert end.recv(100) == b""
    one.until(lambda: one.descriptors() == before, "as many descriptors as before")


@pytest.mark.parametrize("message", [b"\xc1", encode(ops.Take()), encode(ops.Next("binder"))])
def test_a_descriptor_is_closed_whatever_it_came_with(message):
    """Where the kernel lets one through: the loop by itself, with an end that takes them."""

    class Open:
        lasting = True

        def fileno(self):
            return -1

        def enter(self):
            return end

        def close(self):
            pass

    end, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one = Supervisor({}, Open(), lambda _: None)
    try:
        one._knock()
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(ours, [message], [0])
        one._hear()
        assert ours.recv(10) == b""
        assert len(os.listdir("/proc/self/fd")) == before - 1  # the agent's end
    finally:
        ours.close()
        one._release()


def test_an_agent_that_asks_again_and_again_is_told_to_wait(stage):
    one = stage(*SOCKET)
    up(one)
    with dial(one) as end:
        for _ in range(GIVEN_LIMIT):
            given(end, "witness").close()
        end.send(encode(ops.Next("witness")))
        assert b"10 were asked for within 10 s" in end.recv(1000)
        given(end, "binder").close()
    one.until(lambda: len(one.children()) == 2, "no witness is made")


def test_no_room_for_the_agent_is_told_and_it_is_let_in_later(stage):
    one = stage(*SOCKET)
    up(one)
    soft, hard = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (3, hard))
    with dial(one) as end:
        one.until(lambda: "cannot be let in" in one.log.read_text(), "it is told")
        assert one.process.poll() is None
        resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        given(end, "binder").close()


def test_spares_that_die_are_replaced_slower_and_slower(stage):
    one = stage(*SOCKET, "--broken", "witness")
    one.until(lambda: one.log.read_text().count("starting witness") >= 4, "some deaths")
    # 0, 0.2, 0.4, 0.8 s between them: the log cannot hold many yet.
    assert one.log.read_text().count("starting witness") < 10
    with dial(one) as end:
        end.send(encode(ops.Next("witness")))
        assert b"not_ready" in end.recv(1000)
        given(end, "binder").close()


def test_a_spare_that_is_killed_is_replaced_at_once(stage):
    one = stage(*SOCKET)
    victim = min(up(one))
    os.kill(victim, signal.SIGKILL)
    one.until(lambda: victim not in one.children() and len(one.children()) == 3, "replaced")
    assert f"{victim}: killed by signal 9 (SIGKILL)" in one.log.read_text()


def test_the_processes_have_names(stage):
    one = stage(*SOCKET)
    pids = up(one)
    comms = sorted(Path(f"/proc/{pid}/comm").read_text("ascii").strip() for pid in pids)
    titles = sorted(
        Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode() for pid in pids
    )
    assert comms == titles == ["xce-binder", "xce-prober", "xce-witness"]


@pytest.mark.needs("root")
def test_each_process_keeps_its_own_capabilities_and_filter(stage):
    """The supervisor as well: it may fork and end its helpers, and start no program."""
    one = stage(*SOCKET)
    up(one)
    found = {}
    for pid in (one.process.pid, *one.children()):
        lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert status["CapPrm"] == status["CapEff"]
        bits = int(status["CapPrm"], 16)
        kept = {c.name for c in Capability if bits >> c & 1}
        assert bits == sum(1 << Capability[name] for name in kept)
        # Nor can any of them gain more.
        most = int(status["CapBnd"], 16)
        assert most == (bits if pid == one.process.pid else 0)
        found[Path(f"/proc/{pid}/comm").read_text("ascii").strip()] = kept, status["Uid"].split()[0]
    assert found == {
        Path(sys.executable).name: (
            {"SETUID", "SETGID", "SETPCAP", "KILL", "SYS_ADMIN", "NET_ADMIN"}
            | {"SYS_PTRACE", "DAC_READ_SEARCH"},
            "0",
        ),
        "xce-binder": ({"SYS_ADMIN", "NET_ADMIN"}, "0"),
        "xce-prober": (set(), "61498"),
        "xce-witness": ({"SYS_PTRACE", "DAC_READ_SEARCH"}, "61497"),
    }


@pytest.mark.needs("root")
def test_helpers_hold_nothing_but_their_own_socket(stage):
    one = stage(*SOCKET)
    up(one)
    with dial(one) as end, given(end, "binder"):
        one.until(lambda: len(one.children()) == 4 and one.descriptors(), "the spare is there")
        for pid in one.children():
            held = [int(name) for name in os.listdir(f"/proc/{pid}/fd") if int(name) > 2]
            links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in held]
            sockets = [link for link in links if link.startswith("socket:")]
            assert len(sockets) == 1, links
            assert all(link.startswith(("socket:", str(one.folder))) for link in links), links


def test_nobody_wakes_up_while_there_is_nothing_to_do(stage):
    one = stage(*SOCKET)
    pids = [*up(one), one.process.pid]

    def asleep():
        texts = [Path(f"/proc/{pid}/status").read_text("ascii") for pid in pids]
        return all("State:\tS" in text for text in texts)

    def switches():
        text = "".join(Path(f"/proc/{pid}/status").read_text("ascii") for pid in pids)
        return [line for line in text.splitlines() if line.startswith("voluntary_ctxt")]

    one.until(asleep, "all wait")
    before = switches()
    with pytest.raises(subprocess.TimeoutExpired):
        one.process.wait(1.5)
    assert switches() == before


@pytest.mark.needs("root")
def test_the_socket_is_the_agents_and_nobody_elses(stage):
    one = stage(*SOCKET, "--agent-uid", "65534")
    up(one)
    path = one.folder / "helpers.sock"
    found = path.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (65534, 0o600)
    with dial(one) as end:  # root may connect, and is not the agent
        assert end.recv(100) == b""
    assert "uid 0 wants a helper: refused, expected uid 65534" in one.log.read_text()
    code = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setresgid(*[int(sys.argv[2])] * 3)\n"
        "os.setresuid(*[int(sys.argv[2])] * 3)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.settimeout(10); s.connect(sys.argv[1])\n"
        "s.send(bytes.fromhex(sys.argv[3])); print(s.recv(100)[:20])\n"
    )

    def as_user(uid):
        return subprocess.run(
            [sys.executable, "-c", code, str(path), uid, encode(ops.Next("witness")).hex()],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip

    assert "given" in as_user("65534").stdout
    assert "PermissionError" in as_user("65533").stderr


def test_a_folder_that_others_can_write_to_is_no_place_for_the_socket(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(BadConfig, match="nobody else can write to"):
        Listening(str(folder / "s"), os.getuid(), lambda _: None)


@pytest.mark.needs("root")
def test_a_link_in_the_agents_own_folder_gives_away_nothing_else(tmp_path):
    """The agent's folder, the agent's link: what is there already is not what we made."""
    tmp_path.chmod(0o755)
    os.chown(tmp_path, 65534, 65534)
    victim = tmp_path / "victim"
    victim.write_text("x")
    (tmp_path / "s").symlink_to(victim)
    door = Listening(str(tmp_path / "s"), 65534, lambda _: None)
    door.close()
    assert victim.stat().st_uid == 0
    assert (tmp_path / "s").lstat().st_uid == 65534


@pytest.mark.needs("root")
def test_a_restarted_supervisor_never_has_a_socket_that_is_closed_to_its_agent(
    tmp_path, monkeypatch
):
    """An agent that knocks in between hears that nobody is there, and not that it may not."""
    path = tmp_path / "s"
    Listening(str(path), 65534, lambda _: None).close()
    give, owners = door_module._give, []

    def given(where, uid):
        owners.append(path.stat().st_uid)
        give(where, uid)

    monkeypatch.setattr(door_module, "_give", given)
    Listening(str(path), 65534, lambda _: None).close()
    assert owners == [65534]
    assert path.stat().st_uid == 65534
    assert [one.name for one in tmp_path.iterdir()] == ["s"]


def test_systemd_is_told_when_the_spares_are_there_and_that_we_live(stage, tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(10)
        one = stage(*SOCKET, env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"})
        told = [manager.recv(100) for _ in range(4)]
        while b"READY=1" not in told:
            told.append(manager.recv(100))
        assert len(one.children()) == 3
        assert b"WATCHDOG=1" in told
        assert manager.recv(100) == b"WATCHDOG=1"
        one.process.send_signal(signal.SIGTERM)
        while told[-1] != b"STOPPING=1":
            told.append(manager.recv(100))
        assert one.process.wait(10) == 0
    assert told.count(b"READY=1") == 1


def test_without_a_manager_nothing_is_told():
    notify = Notify({})
    notify("READY=1")
    assert notify.watchdog == 0
    Notify({"NOTIFY_SOCKET": "/nowhere/at/all"})("READY=1")


def test_the_agent_finds_its_helpers_again_when_the_supervisor_was_restarted(stage):
    one = stage(*SOCKET)
    up(one)

    async def main():
        supply = Supply(listening(str(one.folder / "helpers.sock")), patience=20)
        binder = Helper("binder", supply, ops.BinderAnswer, greeting=lambda: (ops.Take(),))
        try:
            await binder.start()
            first = binder.pid
            one.process.kill()
            one.process.wait()
            waiting = asyncio.create_task(binder.call(ops.Manage(())))
            await asyncio.to_thread(one.until, lambda: not binder.pid, "the loss is noticed")
            two = await asyncio.to_thread(
                stage, "--socket", str(one.folder / "helpers.sock"), lock=one.lock
            )
            assert isinstance(await waiting, ops.Done)
            assert binder.pid in two.children()
            assert binder.pid != first
        finally:
            binder.close()
            supply.close()

    asyncio.run(main())


def test_a_supervisor_that_never_comes_is_told_in_time(tmp_path):
    async def main():
        supply = Supply(listening(str(tmp_path / "none.sock")), patience=0.3)
        witness = Helper("witness", supply, ops.WitnessAnswer)
        with pytest.raises(NotReady, match=r"no witness within 0\.3 seconds"):
            await witness.call(ops.Look())
        witness.close()
        supply.close()

    asyncio.run(main())
