"""With control of the listener, which has cards open by a vendor's library: here it was taken over.

The prober has the same library, and is honest: what it says of the card is to stay.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from agent.running import Running, serving

TESTS = Path(__file__).parents[1]
SOURCES = (TESTS / "machines/nvml/nvml_stub.c", Path(__file__).parent / "evil_library.c")
ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\u202e\n"
CARD = "0000:1b:00.0"
SAID = "gpu bus=00000000:1B:00.0 uuid=GPU-true name=x minor=3 memory=1 cc=9.0 mig=0\n"
PATIENCE = 30.0

pytestmark = [pytest.mark.needs("root", "cgroup2", "bpf", "cc"), pytest.mark.timeout(120)]


def heard(**fields):
    return msgspec.msgpack.encode({"type": "heard", **fields})


HUGE = (1 << 64) - 1
SAMPLE = {
    "temperature": HUGE, "slowdown_at": -(1 << 63), "corrected": HUGE, "lost": ESCAPES * 100,
}  # fmt: skip
LIES = {
    "events": [
        ("0000:ff:00.0", {"number": 79}),
        ("../../../etc", {"number": 79}),
        (ESCAPES, {"number": 79}),
        *((CARD, {"number": n, "gpu_instance": -n, "compute_instance": HUGE}) for n in range(200)),
        (CARD, {"number": HUGE}),
        (CARD, {"number": -1}),
    ],
    "cut": ["GPU-other", ESCAPES, ""],
    "samples": {CARD: SAMPLE, "0000:ff:00.0": SAMPLE, ESCAPES: SAMPLE},
    "deaf": {CARD: ESCAPES, ESCAPES: ESCAPES},
}
BROKEN = "it broke the protocol"
# What it sends, how, and what the agent says of it; "" is nothing, for a lie may be true.
ATTACKS = {
    "garbage": (b"\xc1" * 100, "", BROKEN),
    "too long": (b"\x90" * 200_000, "", BROKEN),
    "nested without end": (heard()[:-1] + b"\x91" * 100_000, "", BROKEN),
    "an answer of the prober": (
        msgspec.msgpack.encode({"type": "probed", "state": "found", "reason": "", "facts": {}}),
        "", BROKEN,
    ),
    "a failure with strange details": (
        msgspec.msgpack.encode(
            {"type": "failed", "code": "x", "message": "odd", "details": {"message": 1, "self": 2}}
        ),
        "", "odd",
    ),
    "want of memory for ever": (
        msgspec.msgpack.encode(
            {"type": "failed", "code": "x", "message": ESCAPES, "details": {"exhausted": True}}
        ),
        "", "it ran out of what it needs",
    ),
    "lies": (heard(**LIES), "", ""),
    "nothing, at once": (heard(), "", ""),
    "a fault with escapes": (heard(fault=f"why\n{ESCAPES}"), "", "why"),
    "answers that nobody asked for": (heard(), "flood", BROKEN),
    "a descriptor": (heard(), "descriptor", "it "),
    "no answer": (b"", "hang", "did not answer Listen within"),
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    built = tmp_path_factory.mktemp("evil") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-std=gnu11", "-shared", "-fPIC", "-o", built, *SOURCES], check=True)
    return built


@pytest.fixture
def attacked(cgroup2_mount, library):
    """Start agents whose listener says what it is told to say."""
    started = []

    def start(answer, mode="", **env):
        class Attacked(Running):
            def start(self, profile="dgx-h100"):
                own = self.folder / "lib"
                own.mkdir()
                (own / library.name).write_bytes(library.read_bytes())
                (own / "answer").write_bytes(answer)
                (own / "data").write_text(f"driver 1\n{SAID}", "ascii")
                for path in (own, *own.iterdir()):
                    path.chmod(0o755)
                self.keys = "library_seconds = 1"
                self.env |= {
                    "LD_LIBRARY_PATH": str(own), "XCE_NVML_DATA": str(own / "data"),
                    "XCE_EVIL": str(own / "answer"), "XCE_EVIL_ROLE": "xce-listener",
                    "XCE_EVIL_MODE": mode, **env,
                }  # fmt: skip
                super().start(profile)

        context = serving(cgroup2_mount, Attacked)
        started.append(context)
        return context.__enter__()

    yield start
    for context in started:
        context.__exit__(None, None, None)


def vendors(agent):
    found = agent.call("GetInventory")["instances"]
    return [one for one in found if one["provider"] == "nvidia"]


def eventually(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.05)


def told(agent):
    """What doctor and the log say of it."""
    checks = [one["text"] for one in agent.call("Doctor")["checks"] if "telemetry" in one["name"]]
    return "\n".join((*checks, agent.log.read_text("utf-8")))


@pytest.mark.parametrize("name", ATTACKS)
def test_whatever_it_answers_cards_are_served_no_output_is_bent_and_it_is_said(
    attacked, in_job, name
):
    answer, mode, said = ATTACKS[name]
    agent = attacked(answer, mode)
    began, woken = time.monotonic(), wakes(agent.process.pid)
    eventually(lambda: vendors(agent), "the prober's card")
    prepared = agent.call("Prepare", job="1", uid=54321, request="rusage[gpu=2]")
    assert prepared["enforcement"] == "cgroup2"
    inside = in_job(prepared["cgroup"]["v2"])
    cards = agent.instances("gpu")
    assert all(card["healthy"] for card in cards), "cards that it does not have"
    seen = [inside.opens(card["devices"][0]["path"]) for card in cards]
    assert seen.count("ENXIO") == 2, seen
    assert set(seen) == {"ENXIO", "EPERM"}
    inside.end()
    eventually(lambda: said in told(agent), "it is said")
    assert [one["id"] for one in vendors(agent)] == ["GPU-true"]
    for words in (["inventory"], ["doctor"], ["job", "1"]):
        done = subprocess.run(
            [sys.executable, "-m", "xce_nodeagent", *words], env=agent.env, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 69), done.stderr
        shown = done.stdout + done.stderr
        assert all(line.isprintable() for line in shown.split("\n")), words
    assert agent.call("Release", job="1")["released"]
    took = max(1.0, time.monotonic() - began)
    assert (wakes(agent.process.pid) - woken) / took < 300, "it is asked without end"
    log = agent.log.read_text("utf-8")
    assert all(line.isprintable() for line in log.split("\n"))
    assert "Traceback" not in log


def test_a_listener_that_names_ever_new_hung_cards_is_not_asked_for_ever(attacked):
    agent = attacked(heard(hung="NNNNNN"), XCE_EVIL_COUNT="1")
    eventually(lambda: "hung a prober" in agent.log.read_text("utf-8"), "it is believed")
    eventually(lambda: quiet(agent.process.pid), "it is left alone")
    assert agent.log.read_text("utf-8").count("hung a prober") <= 64
    assert agent.call("Prepare", job="1", request="rusage[gpu=2]")["enforcement"] == "cgroup2"


def quiet(pid):
    """Say whether a process is woken seldom."""
    woken, began = wakes(pid), time.monotonic()
    time.sleep(0.5)
    return (wakes(pid) - woken) / (time.monotonic() - began) < 150


def wakes(pid):
    """Say how often it has waited for something: each answer of the listener's is one."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
