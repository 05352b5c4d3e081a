"""Metrics of a real agent, read as Prometheus reads them."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent.running import Refused, children
from metrics.served import connection, scrape, showing, value, values

from xce_nodeagent.export.figures import TABLE

pytestmark = pytest.mark.needs("root", "cgroup2")

PATIENCE = 20.0
REPORT = "xce_nodeagent_report"
JOB, ATTEMPT = "a-job-that-nobody-else-has", "an-attempt-of-it"


def _until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def _fresh(metered: Any, before: str) -> str:
    """Scrape until it is made anew."""
    found = [before]

    def other() -> bool:
        found[0] = scrape(metered.port)
        return found[0] != before

    _until(other)
    return found[0]


def _checks(agent: Any, name: str) -> list[tuple[str, str]]:
    found = agent.call("Doctor")["checks"]
    return [(one["state"], one["text"]) for one in found if one["name"] == name]


def test_counters_move_by_what_jobs_do(metered) -> None:
    before = _fresh(metered, scrape(metered.port))  # what other tests did may be told late
    gpus = value(before, "xce_nodeagent_instances", type="gpu", state="free")
    bound = metered.call("Prepare", job=JOB, attempt=ATTEMPT, request="rusage[gpu=2]")
    held = _fresh(metered, before)
    with pytest.raises(Refused):
        metered.call("Prepare", job="another", instances=bound["instances"])
    with pytest.raises(Refused):
        metered.call("Prepare", job="another", request=f"rusage[gpu={gpus + 1:.0f}]")
    metered.call("Release", job=JOB, attempt=ATTEMPT)
    after = _fresh(metered, held)
    for text, free, out in ((before, gpus, 0), (held, gpus - 2, 2), (after, gpus, 0)):
        assert value(text, "xce_nodeagent_instances", type="gpu", state="free") == free
        assert value(text, "xce_nodeagent_instances", type="gpu", state="held") == out
    assert value(held, "xce_nodeagent_bindings", state="bound") == 1

    def moved(name: str, **labels: str) -> float:
        key = name, tuple(sorted(labels.items()))
        return values(after).get(key, 0.0) - values(before).get(key, 0.0)

    assert moved("xce_nodeagent_calls_total", method="Prepare", code="ok") == 1
    assert moved("xce_nodeagent_calls_total", method="Prepare", code="busy") == 1
    assert moved("xce_nodeagent_calls_total", method="Prepare", code="never_fits") == 1
    for outcome in ("ok", "transient", "job"):
        assert moved("xce_nodeagent_prepare_seconds_count", outcome=outcome) == 1
    assert moved("xce_nodeagent_release_seconds_count", outcome="ok") == 1
    for step in ("plan", "look", "commit", "bind"):
        assert moved("xce_nodeagent_prepare_step_seconds_count", step=step) == 1
    for step in ("commit", "unbind"):
        assert moved("xce_nodeagent_release_step_seconds_count", step=step) == 1
    assert moved("xce_nodeagent_ledger_commits_total") >= 2
    whole = moved("xce_nodeagent_prepare_seconds_sum", outcome="ok")
    steps = [
        moved("xce_nodeagent_prepare_step_seconds_sum", step=step)
        for step in ("plan", "commit", "bind")  # the look is within the last
    ]
    assert 0 < sum(steps) < whole < PATIENCE
    for text in (held, after):
        assert not any(word in text for word in (JOB, ATTEMPT, "another"))
    assert len(values(after)) < 1000


def test_what_is_told_is_what_is_documented(metered) -> None:
    told = {name for name, _ in values(scrape(metered.port))}
    known = {row.name for row in TABLE}
    bare = {name.removesuffix(end) for name in told for end in ("", "_bucket", "_sum", "_count")}
    assert known <= bare


def test_the_process_is_told_as_prometheus_names_it(metered) -> None:
    text = scrape(metered.port)
    status = Path(f"/proc/{metered.process.pid}/status").read_text("ascii")
    resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
    assert value(text, "process_resident_memory_bytes") == pytest.approx(resident, rel=0.5)
    started = Path(f"/proc/{metered.process.pid}").stat().st_mtime
    assert value(text, "process_start_time_seconds") == pytest.approx(started, abs=60)
    assert value(text, "process_cpu_seconds_total") > 0
    fds = len(os.listdir(f"/proc/{metered.process.pid}/fd"))
    assert value(text, "process_open_fds") == pytest.approx(fds, abs=5)


def test_a_drained_card_and_a_helper_that_is_replaced_are_seen(metered) -> None:
    card = metered.instances("gpu")[0]["id"]
    before = scrape(metered.port)
    metered.call("Drain", id=card, reason="for a test")
    try:
        text = _fresh(metered, before)
        assert value(text, "xce_nodeagent_instances", type="gpu", state="drained") == 1
        assert value(text, "xce_nodeagent_instances_unfit", type="gpu", reason="drained") == 1
    finally:
        metered.call("Undrain", id=card)
    roles = {dict(labels)["role"] for name, labels in values(text) if "helper_up" in name}
    assert roles >= {"binder", "witness"}


def test_a_look_at_the_fences_and_a_binder_that_dies_are_counted(metered) -> None:
    metered.call("Prepare", job="looked-at", request="rusage[gpu=1]")
    before = _fresh(metered, scrape(metered.port))
    rounds = "xce_nodeagent_verification_rounds_total"
    whole = "xce_nodeagent_verification_bindings_total"
    lost = "xce_nodeagent_helper_restarts_total"
    metered.call("Doctor", repair=True)
    for supervisor in children(metered.process.pid):
        for helper in children(supervisor):  # the one that serves, and the spare
            if Path(f"/proc/{helper}/comm").read_text("ascii") == "xce-binder\n":
                os.kill(helper, signal.SIGKILL)
    found = [before]

    def replaced() -> bool:
        found[0] = scrape(metered.port)
        return value(found[0], lost, role="binder") > value(before, lost, role="binder")

    try:
        _until(replaced)
    finally:
        metered.call("Release", job="looked-at")
    assert value(found[0], rounds) > value(before, rounds)
    assert value(found[0], whole, result="whole") > value(before, whole, result="whole")


def test_how_reports_go_is_told(metered) -> None:
    where = metered.port
    _until(lambda: value(scrape(where), f"{REPORT}_deliveries_total", sink="file") >= 1)
    text = scrape(where)
    assert value(text, f"{REPORT}_failing", sink="file") == 0
    assert value(text, f"{REPORT}_lag_seconds", sink="file") < PATIENCE
    size = (metered.folder / "state" / "out.json").stat().st_size
    assert value(text, f"{REPORT}_bytes_total", sink="file") >= size


def test_the_file_has_the_same_and_nothing_of_the_process(metered) -> None:
    path = metered.folder / "state" / "xce.prom"
    _until(path.exists)
    told = {name for name, _ in values(scrape(metered.port)) if not name.startswith("process_")}
    assert {name for name, _ in values(path.read_text("utf-8"))} == told

    def listed() -> float:
        text = path.read_text("utf-8")
        return value(text, "xce_nodeagent_calls_total", method="ListBindings", code="ok")

    before = listed()
    metered.call("ListBindings")
    _until(lambda: listed() > before)


def test_doctor_says_where_they_are(metered) -> None:
    assert _checks(metered, "metrics") == [("ok", f"served at {metered.port}")]
    (file,) = _checks(metered, "metrics.textfile")
    assert file[0] == "ok"


def test_a_crowd_of_hostile_readers_delays_no_job(metered) -> None:
    host, _, port = metered.port.rpartition(":")
    crowd = [socket.create_connection((host, int(port)), PATIENCE) for _ in range(12)]
    try:
        for sock in crowd:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n")  # and no end, and nothing is read
        metered.call("Prepare", job="beside", request="rusage[gpu=1]")
        metered.call("Release", job="beside")
        assert "xce_nodeagent_build_info" in scrape(metered.port)
    finally:
        for sock in crowd:
            sock.close()


def test_a_unix_socket_also_after_a_kill(cgroup2_mount) -> None:
    with showing(cgroup2_mount, 'listen = "unix:@/run/m.sock"') as agent:
        where = f"unix:{agent.folder}/run/m.sock"
        assert "xce_nodeagent_build_info" in scrape(where)
        asked = connection(where)
        asked.request("POST", "/metrics", b"x" * 100)
        assert asked.getresponse().status == 405
        asked.close()
        agent.kill()
        agent.start()
        assert "xce_nodeagent_build_info" in scrape(where)
        agent.stop()
        assert not Path(where.removeprefix("unix:")).exists()


def test_a_port_that_is_taken_is_a_warning_and_no_failed_start(cgroup2_mount) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with showing(cgroup2_mount, f'listen = "{where}"') as agent:
            ((state, text),) = _checks(agent, "metrics")
            assert (state, text) == (
                "warning",
                f"they are not served at {where}: Address already in use",
            )
