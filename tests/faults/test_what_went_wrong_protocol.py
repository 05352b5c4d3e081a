"""What went wrong elsewhere between prepare and release."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

ASK = {"job": "1", "attempt": "a", "request": "rusage[gpu=1]"}


def bindings(agent):
    return {(one["job"], one["attempt"]): one for one in agent.call("ListBindings")["bindings"]}


def at_once(*calls):
    """Make all calls at the same time; give what came of each."""
    start = threading.Barrier(len(calls))
    results = [None] * len(calls)

    def one(place, call):
        start.wait()
        try:
            results[place] = call()
        except Exception as error:  # noqa: BLE001  # what came of it is what is asked for
            results[place] = error

    threads = [threading.Thread(target=one, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_second_prepare_takes_a_finished_one_back(agent):
    """dra-driver#754, #729: it was noted as begun again, and could never be released after that."""
    answer = agent.call("Prepare", **ASK)
    assert bindings(agent)["1", "a"]["state"] == "bound"
    for _ in range(3):
        assert agent.call("Prepare", **ASK) == answer
        assert bindings(agent)["1", "a"]["state"] == "bound"
    agent.kill()
    agent.start()
    assert agent.call("Prepare", **ASK) == answer
    assert agent.call("Release", job="1", attempt="a")["clean"] is True
    assert bindings(agent) == {}


def test_one_device_is_in_two_claims(agent, refused):
    """kubernetes#141471, dra-example-driver#263, Slurm 23.11: also a card and a slice of it."""
    agent.stop()
    agent.start("dgx-a100-mig")
    slices = agent.instances("mig")
    card = slices[0]["parent"]
    of_card = [one["id"] for one in slices if one["parent"] == card]
    for round_ in range(10):
        wishes = [card, *of_card, card, *of_card]
        results = at_once(
            *(
                lambda wish=wish, job=f"{round_}-{place}": agent.call(
                    "Prepare", job=job, instances=[wish]
                )
                for place, wish in enumerate(wishes)
            )
        )
        assert {r.code for r in results if isinstance(r, refused)} <= {"busy"}
        given = [r["instances"][0] for r in results if isinstance(r, dict)]
        assert len(given) == len(set(given))
        assert given == [card] or card not in given
        assert given
        agent.call("Reconcile", jobs=[])


def test_the_epilog_runs_many_times(agent):
    """Slurm 26.05: it ran again with each retry. A release has its effect once."""
    agent.call("Prepare", **ASK)
    results = at_once(*(lambda: agent.call("Release", job="1", attempt="a") for _ in range(16)))
    assert [result["released"] for result in results] == [True] * 16
    assert [result["known"] for result in results].count(True) == 1
    # One of them that is late, and comes when the card is somebody else's, does nothing.
    agent.call("Prepare", **ASK | {"job": "2"})
    assert agent.call("Release", job="1", attempt="a")["known"] is False
    assert list(bindings(agent)) == [("2", "a")]


@pytest.mark.needs("cc")
def test_a_release_needs_the_driver_that_is_gone(driver, gpu, in_job, eventually):
    """kubernetes#129402, #139772, k8s-driver-manager#217: no driver, and no job could ever end."""
    agent = driver.running
    driver.start(gpu("1B", "GPU-a", 0))
    answer = agent.call("Prepare", job="1", attempt="a", instances=["GPU-a"])
    inside = in_job(answer["cgroup"]["v2"])
    node = driver.node("GPU-a")
    assert inside.opens(node) == "ENXIO"
    agent.kill()
    # The driver is unloaded, library and all: nobody knows of the card any more.
    for name in ("LD_LIBRARY_PATH", "XCE_NVML_DATA"):
        del agent.env[name]
    (driver.folder / "devices").write_text(
        "Character devices:\n  1 mem\n\nBlock devices:\n", "ascii"
    )
    agent.start("cpu-only")
    eventually(lambda: driver.cards() == {})
    assert list(bindings(agent)) == [("1", "a")]
    inside.end()
    assert agent.call("Release", job="1", attempt="a")["clean"] is True
    assert bindings(agent) == {}


HOOK = str(Path(__file__).parents[2] / "hooks" / "prepare")


@contextlib.contextmanager
def between(agent):
    """Stand between whoever asks and the agent: give our socket's path, and what was asked.

    Whoever asks for the job `mute` gets no answer: the connection ends.
    """
    path = agent.folder / "between.sock"
    asked: list[dict] = []

    def serve(listener):
        while True:
            with contextlib.suppress(ConnectionError):
                peer, _ = listener.accept()
                with peer, socket.socket(socket.AF_UNIX) as there:
                    message = b""
                    while not message.endswith(b"\0") and (data := peer.recv(1 << 16)):
                        message += data
                    if not message:
                        return
                    asked.append(json.loads(message[:-1]))
                    if asked[-1]["parameters"]["job"] == "mute":
                        continue
                    there.connect(str(agent.socket))
                    there.sendall(message)
                    while data := there.recv(1 << 16):
                        peer.sendall(data)
                        if data.endswith(b"\0"):
                            break

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        try:
            yield str(path), asked
        finally:
            with socket.socket(socket.AF_UNIX) as last:  # who says nothing ends it
                last.connect(str(path))
            server.join()


@pytest.mark.parametrize(
    "program",
    [[HOOK], [sys.executable, "-m", "xce_nodeagent", "prepare"]],
    ids=["the hook", "the command"],
)
def test_a_failing_prolog_is_tried_again_at_once_and_for_ever(agent, program):
    """ROCm/spur#243, #538: four times a second, until the job had no requeue left.

    How often a prolog is run is the scheduler's. Ours asks once, whatever is wrong, leaves nothing
    of what failed, and its exit status says whose turn it is: another node's (69), nobody's (65),
    this one's, and later (75), or whoever wrote the call (64).
    """
    card = agent.instances("gpu")[0]["id"]
    agent.call("Drain", id=card, reason="x")
    before = sorted(agent.home.iterdir())
    with between(agent) as (path, asked):
        for arguments, status in (
            (["--job", "1", "--instance", card], 69),
            (["--job", "1", "--request", "rusage[gpu=9]"], 65),
            (["--job", "1", "--request", "rusage[gpu=8]"], 75),
            (["--job", "1", "--request", "rusage[gpu="], 64),
            (["--job", "mute", "--request", "rusage[gpu=1]"], 75),
        ):
            asked.clear()
            done = subprocess.run(
                [*program, "--socket", path, *arguments],
                env=agent.env, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (status, ""), done.stderr
            methods = [one["method"] for one in asked]
            assert methods == ["io.xce.NodeAgent.Prepare"], arguments
            assert bindings(agent) == {}
            assert sorted(agent.home.iterdir()) == before
