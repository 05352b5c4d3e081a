"""What doctor makes of what a witness saw."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from xce_nodeagent.binding.verification import Found
from xce_nodeagent.daemon import doctor
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import ops

SEEN = ops.Seen(17, 1000, "train", "c 60:1")


class Saw:
    """A witness that saw just this."""

    def __init__(self, looked):
        self.looked = looked

    async def call(self, _):
        return self.looked


@pytest.mark.parametrize(
    ("seen", "hidden", "states"),
    [
        ((), 0, {"witness": "ok"}),
        ((), 3, {"witness": "note"}),
        ((SEEN,), 0, {"holder.17": "warning"}),
        ((SEEN,), 3, {"holder.17": "warning", "witness": "note"}),
    ],
)
def test_it_claims_no_more_than_was_seen(seen, hidden, states):
    witness = Saw(ops.Looked(seen, hidden))
    checks = asyncio.run(doctor.strangers((), (Device("c", 60, 1),), witness))
    assert {check.name: check.state for check in checks} == states
    if hidden:
        (note,) = [check for check in checks if check.state == "note"]
        assert "3 processes cannot be looked into" in note.text
        assert "nobody" not in note.text


@pytest.mark.parametrize(
    ("unread", "hidden", "words"),
    [
        ((7,), 1, "1 process cannot be looked into, ssh (pid 7): if it has"),
        ((7, 8), 2, "2 processes cannot be looked into, ssh (pid 7), (pid 8): if one has"),
        ((7,), 9, "9 processes cannot be looked into, ssh (pid 7) and 8 more: if one has"),
    ],
)
def test_it_names_who_cannot_be_looked_into_and_what_that_means(unread, hidden, words):
    witness = Saw(ops.Looked((), hidden, unread=unread))
    names = {7: "ssh"}
    checks = doctor.strangers((), (), witness, lambda pid: names.get(pid, ""))
    (note,) = asyncio.run(checks)
    assert note.text.startswith(words)
    assert "nothing has to be done" in note.text


def test_a_repair_with_failures_is_a_fault():
    failed = doctor.repairs([Found(("17", "1"), "failed", "no binder")])
    assert failed[-1].name == "repair"
    assert failed[-1].state == "fault"
    assert doctor.repairs([Found(("17", "1"), "whole")])[-1].state == "ok"


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_helpers_whose_supervisor_is_dead_are_one_fault_with_one_remedy(agent):
    card = agent.instances("gpu")[0]["id"]
    agent.call("Prepare", job="17", attempt="1", instances=[card])
    (supervisor,) = [
        int(pid)
        for pid in Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children")
        .read_text("ascii")
        .split()
    ]
    os.kill(supervisor, signal.SIGKILL)
    for repair in (False, True, False):
        checks = agent.call("Doctor", repair=repair)["checks"]
        by_name = {check["name"]: check for check in checks}
        assert by_name["helpers"]["state"] == "fault"
        assert "restart the agent" in by_name["helpers"]["remedy"]
        faults = {name for name, check in by_name.items() if check["state"] == "fault"}
        assert faults == {"helpers"} | ({"repair", "repair.17"} if repair else set())
        for name, check in by_name.items():
            if name not in {"helpers", "repair", "repair.17"}:
                assert "restart" not in check["remedy"]
                assert "--repair" not in check["remedy"]
                assert "end these processes" not in check["remedy"]


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_a_cgroup_that_was_removed_is_told_with_what_becomes_of_its_binding(agent):
    card = agent.instances("gpu")[0]["id"]
    prepared = agent.call("Prepare", job="17", attempt="1", instances=[card])
    os.rmdir(next(iter(prepared["cgroup"].values())))
    (view,) = agent.call("ListBindings")["bindings"]
    assert (view["healthy"], view["populated"]) == (False, None)
    assert "cgroup is gone" in view["fault"]
    (check,) = [c for c in agent.call("Doctor")["checks"] if c["name"] == "binding.17"]
    assert check["state"] == "fault"
    assert "closes its binding" in check["remedy"]
    agent.call("Doctor", repair=True)
    assert agent.call("ListBindings")["bindings"] == []


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_without_metrics_nothing_is_said_of_them_and_nobody_listens(steady) -> None:
    names = {check["name"] for check in steady.call("Doctor")["checks"]}
    assert not {name for name in names if name.startswith("metrics")}
    process = Path(f"/proc/{steady.process.pid}")
    own = set()
    for one in (process / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(os.readlink(one))
    listening = {
        f"socket:[{line.split()[9]}]"
        for table in ("tcp", "tcp6")
        if (process / "net" / table).exists()
        for line in (process / "net" / table).read_text("ascii").splitlines()[1:]
    }
    assert not own & listening
