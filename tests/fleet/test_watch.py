"""`fleet --watch`: what changes is shown as it does, in a pipe and at a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading

import etcds
import filled
import fleets
import pytest
from filled import COUNT
from msgspec import structs

from xce_nodeagent.cli.fleet.follow import change, difference, lines, tell
from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.etcdwire import delete, put

DEADLINE = 30.0


def named(view):
    return {node.name: node for node in view.nodes}


def test_a_difference_is_what_leads_from_one_to_the_other(view) -> None:
    before, name = named(view), fleets.name(3)
    ill = structs.replace(before[name], state="faulty", faults=("x",))
    after = {**before, name: ill}
    del after[fleets.name(4)]
    assert difference(before, after) == ([ill], [fleets.name(4)])
    assert difference({}, before) == (list(before.values()), [])
    assert difference(before, before) == ([], [])
    told = change(view, [ill], ["gone"])
    assert [node["name"] for node in told["nodes"]] == [name]
    assert "cards" not in told["nodes"][0]
    told = list(lines(view, [ill], ["gone"], before, before=""))
    assert told[0].startswith(f"{name} faulty: was ok; x; now gpu ")
    assert told[1:] == ["gone is gone"]


def test_an_outage_is_told_when_it_begins_and_when_it_ends(view) -> None:
    away = structs.replace(view, outdated="the store is away")
    said: list[str] = []
    tell(iter([view, view, away, away, view]), lambda one: one.nodes, said.append, as_json=False)
    assert [line.split(" ", 2)[2] for line in said] == [
        "200 nodes: 195 available; what changes is told",
        "OUT OF DATE: the store is away",
        "up to date again",
    ]
    said.clear()
    tell(iter([view, away]), lambda one: one.nodes[:2], said.append, as_json=True)
    first, second = map(json.loads, said)
    assert (len(first["nodes"]), len(second["nodes"])) == (2, 0)
    assert second["outdated"] == "the store is away"


@contextlib.contextmanager
def watching(store, *arguments: str):
    """Run `fleet --watch` in a process of its own, and give its lines as they come."""
    process = subprocess.Popen(
        [sys.executable, "-m", "xce_nodeagent", "fleet", "--watch", "--config", str(store.config),
         *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    timer = threading.Timer(DEADLINE, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


def until(process, wanted: str) -> str:
    for line in process.stdout:
        if wanted in line:
            return line
    raise AssertionError(f"{wanted!r} never came: {process.stderr.read()}")


@pytest.mark.needs("etcd")
def test_a_change_is_a_line(changed) -> None:
    name = fleets.name(4)
    with watching(changed) as process:
        assert "20 nodes: 19 available" in process.stdout.readline()
        changed.live(17)
        assert " ok: was stale; now " in until(process, f"{fleets.name(17)} ")
        changed.client.txn((), [delete(changed.keys.live(name))])
        assert " stale: was ok; now " in until(process, f"{name} ")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == 130


@pytest.mark.needs("etcd")
def test_a_change_is_a_line_of_json(changed) -> None:
    name = fleets.name(9)
    with watching(changed, "--json") as process:
        first = json.loads(process.stdout.readline())
        assert first["schema"] == "xce.fleet.change/v1"
        assert len(first["nodes"]) == COUNT
        head = structs.replace(fleets.reported(9).head, time=1.0)
        changed.client.txn((), [put(changed.keys.entry(name, "head"), packing.pack(head))])
        told = json.loads(until(process, name))
        assert [node["name"] for node in told["nodes"]] == [name]
        assert told["revision"] > first["revision"]
        keys = changed.keys
        found = [kv.key for kv in changed.client.range(keys.node(name))[1]]
        changed.client.txn((), [delete(key) for key in [*found, keys.live(name)]])
        assert json.loads(until(process, f'"gone":["{name}"]'))["nodes"] == []
        process.stdout.close()  # a reader that goes away ends it, as it does any filter
        changed.live(17)
        assert process.wait(DEADLINE) == 128 + signal.SIGPIPE


@pytest.mark.needs("etcd")
def test_a_store_that_goes_away_and_comes_back_is_told(tmp_path) -> None:
    with (
        etcds.running() as etcd,
        filled.filled(etcd, tmp_path) as store,
        watching(store) as process,
    ):
        assert "20 nodes: 19 available" in process.stdout.readline()
        etcd.kill()
        assert etcd.url in until(process, "OUT OF DATE: the store is away since ")
        etcd.start()
        until(process, "up to date again")
        store.live(17)
        assert " ok: " in until(process, f"{fleets.name(17)} ")


@pytest.mark.needs("etcd")
def test_a_terminal_is_drawn_anew_with_each_change(changed) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    process = subprocess.Popen(
        [sys.executable, "-m", "xce_nodeagent", "fleet", "--watch", f"--config={changed.config}"],
        stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    timer = threading.Timer(DEADLINE, process.kill)
    timer.start()
    try:
        seen = drawn(ours, "20 nodes: 19 available, 1 unavailable")
        assert "\x1b[?1049h" in seen, "a screen of its own"
        changed.live(17)
        drawn(ours, "20 nodes: 20 available")
        process.send_signal(signal.SIGINT)
        drawn(ours, "\x1b[?1049l")
        assert process.wait(DEADLINE) == 130
    finally:
        timer.cancel()
        process.kill()
        process.communicate()
        os.close(ours)


def drawn(terminal: int, wanted: str) -> str:
    """Read what a terminal is told until something is in it; colours between words do not count."""
    seen = ""
    while wanted not in seen and wanted not in re.sub(r"\x1b\[[0-9;]*m", "", seen):
        try:
            data = os.read(terminal, 65536)
        except OSError:
            data = b""
        if not data:
            raise AssertionError(f"{wanted!r} never came, but {seen[-2000:]!r}")
        seen += data.decode("utf-8", "replace")
    return seen
