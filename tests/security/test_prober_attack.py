"""With control of the prober, which loads vendors' libraries: here one has taken it over."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

SOURCE = Path(__file__).parent / "evil_library.c"
ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\u202e"
CARD = {"pci_address": "0000:1b:00.0", "uuid": "GPU-true", "name": "H100", "minor": 3}

pytestmark = [
    pytest.mark.needs("root", "cgroup2", "bpf", "cc"),
    pytest.mark.timeout(120),
    pytest.mark.parametrize("backend", ["cgroup2"], indirect=True),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = tmp_path_factory.mktemp("evil") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, SOURCE], check=True)
    return built


def answers(facts, state="found", reason=""):
    return msgspec.msgpack.encode(
        {"type": "probed", "state": state, "reason": reason, "facts": facts}
    )


def nested(depth):
    whole = answers({"devices": 7})
    return whole[:-1] + b"\x91" * depth + b"\x90"


def with_card(**facts):
    return answers({"devices": [{**CARD, **facts}]})


ANSWERS = {
    "garbage": b"\xc1" * 100,
    "half an answer": with_card()[:-5],
    "too long": b"\x90" * 200_000,
    "nested without end": nested(100_000),
    "nested as deep as it decodes": nested(900),
    "facts of other types": answers({"devices": "devices", "driver_version": ["x"]}),
    "devices of other types": answers({"devices": [7, None, [], {"pci_address": 7}, {}, "x"]}),
    "a failure with strange details": msgspec.msgpack.encode(
        {"type": "failed", "code": "x", "message": "m", "details": {"message": 1, "self": 2}}
    ),
    "an answer of the binder": msgspec.msgpack.encode({"type": "verified", "state": "ok"}),
    "an address that leads elsewhere": with_card(pci_address="../../../../../../etc"),
    "another address of other cards' nodes": with_card(pci_address="../../../class"),
    "a minor that is text": with_card(minor="8:0\nb 8:0 rwm"),
    "a minor below": with_card(minor=-1),
    "a minor beyond": with_card(minor=1 << 20),
    "a minor far beyond": with_card(minor=1 << 63),
    "an id with lines": with_card(uuid="GPU-1\nLD_PRELOAD=/tmp/x"),
    "an id with a shell": with_card(uuid="GPU-$(id)`id`;'\""),
    "names with escapes": with_card(name=ESCAPES, serial=ESCAPES, missing={ESCAPES: ESCAPES}),
    "a reason with escapes": answers({}, "error", f"why\n{ESCAPES}"),
    "a hung device with escapes": answers({"hung": f"\n{ESCAPES}"}, "error"),
    "a hung device that is a list": answers({"hung": ["x"]}, "error"),
    "many cards": answers({"devices": [{**CARD, "uuid": f"GPU-{n}"} for n in range(1500)]}),
}


def with_library(agent, library, answer, **env):
    agent.stop()
    own = agent.folder / "lib"
    own.mkdir()
    (own / library.name).write_bytes(library.read_bytes())
    (own / "answer").write_bytes(answer)
    for path in (own, *own.iterdir()):
        path.chmod(0o755)
    agent.env |= {"LD_LIBRARY_PATH": str(own), "XCE_EVIL": str(own / "answer"), **env}
    agent.start()


@pytest.mark.parametrize("name", ANSWERS)
def test_whatever_it_answers_the_cards_of_others_are_served_and_no_output_is_bent(
    agent, library, in_job, name
):
    with_library(agent, library, ANSWERS[name])
    prepared = agent.call("Prepare", job="1", uid=54321, request="rusage[gpu=2]")
    assert prepared["enforcement"] == "cgroup2"
    assert len(prepared["instances"]) == 2
    assert all(value.isprintable() for value in prepared["env"].values())
    inside = in_job(prepared["cgroup"]["v2"])
    cards = agent.instances("gpu")
    seen = [inside.opens(card["devices"][0]["path"]) for card in cards]
    assert seen.count("ENXIO") == 2, seen
    assert set(seen) == {"ENXIO", "EPERM"}
    found = agent.call("GetInventory")
    for instance in found["instances"]:
        assert instance["id"].isprintable()
        for device in instance["devices"]:
            assert device["type"] == "c"
            assert device["major"] not in (1, 8), "not even claimed"
    for words in (["inventory"], ["inventory", "--tree"], ["doctor"], ["jobs"], ["job", "1"]):
        done = subprocess.run(
            [sys.executable, "-m", "xce_nodeagent", *words], env=agent.env, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 69), done.stderr
        shown = done.stdout + done.stderr
        assert all(line.isprintable() for line in shown.split("\n")), words
    log = agent.log.read_text("utf-8")
    assert all(line.isprintable() for line in log.split("\n"))
    assert "Traceback" not in log
    assert agent.call("Release", job="1")["released"]


def test_a_prober_that_names_ever_new_hung_devices_is_not_asked_for_ever(agent, library):
    with_library(agent, library, answers({"hung": "NNNNNN"}, "error"), XCE_EVIL_COUNT="1")
    pid = agent.process.pid

    def quiet():
        before = cpu(pid)
        time.sleep(1)
        return cpu(pid) - before < 0.3

    assert any(quiet() for _ in range(10)), "it asks again and again"
    assert agent.log.read_text("utf-8").count("hung a prober") <= 64


def cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100  # user and system time, in ticks
