"""What a job leaves behind is found off the path, whoever has it by now, and held back."""

import os

import pytest

pytestmark = pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf")


def leave(outside, pid):
    """Move a process out of its job's cgroup."""
    (outside / "cgroup.procs").write_text(str(pid), "ascii")


def test_a_process_that_left_the_cgroup_with_a_card_open_is_found_and_waited_for(
    site, process, outside, eventually, refused
):
    cgroup = site.prepare("1", 0)
    worker = process(cgroup)
    assert worker.does("open", site.nodes[0]) == "ok"
    assert worker.does("open", site.nodes[1]) == "EPERM"
    leave(outside, worker.pid)
    released = site.call("Release", job="1", attempt="1")
    assert (released["released"], released["clean"]) == (True, True), "nobody is in the cgroup"
    assert eventually(lambda: site.left("1:1")) == [worker.pid]
    binding = site.bindings()["1:1"]
    assert binding["instances"] == [site.cards[0]]
    assert binding["reason"] == "still-open"
    assert binding["holders"][0]["what"] == "has c 1:5 open"
    with pytest.raises(refused) as error:
        site.prepare("2", 0)
    assert error.value.code == "busy"
    assert error.value.details["holders"] == [{"job": "1", "attempt": "1"}]
    held = {one["id"]: one["held_by"] for one in site.call("GetInventory")["instances"]}
    assert held[site.cards[0]] == [{"job": "1", "attempt": "1"}]
    checks = {one["name"]: one for one in site.call("Doctor")["checks"]}
    assert str(worker.pid) in checks["binding.1"]["text"]
    assert worker.does("close") == "ok"
    eventually(lambda: site.prepare("2", 0))
    assert list(site.bindings()) == ["2:1"]


def test_what_was_withheld_is_so_after_a_restart_and_the_attempt_stays_dead(
    site, process, outside, eventually, refused
):
    cgroup = site.prepare("1", 0)
    worker = process(cgroup)
    worker.does("open", site.nodes[0])
    leave(outside, worker.pid)
    site.call("Release", job="1", attempt="1")
    eventually(lambda: site.left("1:1"))
    site.agent.kill()
    site.agent.start()
    assert site.left("1:1") == [worker.pid]
    with pytest.raises(refused, match="Busy"):
        site.prepare("1", 1)  # the same attempt
    assert site.prepare("1", 1, attempt="2")  # a requeue, on another card
    late = site.call("Release", job="1", attempt="1")
    assert (late["known"], late["clean"], late["quarantined"]) == (True, False, [site.cards[0]])
    assert [one["pid"] for one in late["holders"]] == [worker.pid]
    kept = site.call("Reconcile", jobs=[{"job": "1", "attempt": "2"}])
    assert (kept["kept"], kept["released"]) == ([{"job": "1", "attempt": "2"}], [])
    assert site.call("GetBinding", job="1")["binding"]["attempt"] == "2", "the live one is meant"
    assert site.left("1:1") == [worker.pid]
    worker.end()
    eventually(lambda: list(site.bindings()) == ["1:2"])
    with pytest.raises(refused, match="Stale"):
        site.prepare("1", 0)
    site.prepare("3", 0)


def test_a_card_that_another_job_has_by_now_stays_with_it_and_it_is_told(
    site, process, outside, eventually
):
    cgroup = site.prepare("1", 0)
    worker = process(cgroup)
    worker.does("open", site.nodes[0])
    leave(outside, worker.pid)
    assert site.call("Release", job="1", attempt="1")["clean"] is True
    again = site.prepare("2", 0)  # at once: nobody is in the cgroup
    mine = process(again)
    assert mine.does("open", site.nodes[0]) == "ok"
    told = eventually(lambda: site.bindings()["2:1"]["holders"])
    assert [one["pid"] for one in told] == [worker.pid], "and not the job's own process"
    binding = site.bindings()["2:1"]
    assert binding["state"] in ("committed", "bound")
    assert "shared" in binding["reason"]
    checks = {one["name"]: one for one in site.call("Doctor")["checks"]}
    assert f"pid {worker.pid}" in checks["shared.2"]["text"]
    assert f"pid {worker.pid}" in site.agent.log.read_text("utf-8")
    # When that job is over, the card is doubtful still.
    mine.end()
    site.call("Release", job="2", attempt="1")
    assert eventually(lambda: site.left("2:1")) == [worker.pid]


def test_who_took_a_descriptor_from_the_job_is_found(site, process, eventually, tmp_path):
    taker = process(uid=12345)
    tmp_path.chmod(0o777)
    for above in tmp_path.parents[:-2]:
        above.chmod(above.stat().st_mode | 0o011)
    taker.does("serve", str(tmp_path / "s"))
    cgroup = site.prepare("1", 0)
    worker = process(cgroup)
    worker.does("open", site.nodes[0])
    assert worker.does("connect", str(tmp_path / "s")) == "ok"
    assert taker.does("accept") == "ok"
    assert worker.does("send") == "ok"
    worker.end()
    # In the queue nobody sees of what it is, only that it is there.
    checks = {one["name"]: one["text"] for one in site.call("Doctor")["checks"]}
    assert "descriptors lie in sockets' queues" in checks["witness.queues"]
    # The taker is older than the job, and was seen without the card.
    site.settled()
    assert taker.does("take") == "ok"
    assert site.call("Release", job="1", attempt="1")["clean"] is True
    assert eventually(lambda: site.left("1:1")) == [taker.pid]
    taker.does("close")
    eventually(lambda: not site.bindings())


def test_a_card_that_is_only_mapped_is_found(site, process, outside, eventually):
    cgroup = site.prepare("1", 0)
    worker = process(cgroup)
    assert worker.does("map", site.nodes[0]) == "ok"
    leave(outside, worker.pid)
    fds = [os.readlink(fd) for fd in os.scandir(f"/proc/{worker.pid}/fd")]
    assert site.nodes[0] not in fds
    site.call("Release", job="1", attempt="1")
    assert eventually(lambda: site.left("1:1")) == [worker.pid]
    assert site.bindings()["1:1"]["holders"][0]["what"] == "has c 1:5 in its memory"
    worker.does("close")
    eventually(lambda: not site.bindings())


def test_who_had_a_card_open_before_the_job_is_not_its_left_over(site, process, eventually):
    """A vendor's daemon: it must not quarantine each card with its first release."""
    daemon = process()
    daemon.does("open", site.nodes[0])
    other = process()
    other.does("path", site.nodes[0])
    site.settled()
    cgroup = site.prepare("1", 0)
    worker = process(cgroup)
    worker.does("open", site.nodes[0])
    site.settled()
    assert site.bindings()["1:1"]["holders"] == []
    worker.end()
    assert site.call("Release", job="1", attempt="1")["clean"] is True
    site.settled()
    assert site.bindings() == {}
    assert eventually(lambda: site.prepare("2", 0))


def test_what_a_job_gave_up_while_it_runs_and_still_has_open_is_withheld(site, process, eventually):
    cgroup = site.prepare("1", 0, 1)
    worker = process(cgroup)
    worker.does("open", site.nodes[0])
    site.call("Release", job="1", attempt="1", instances=[site.cards[0]])
    assert eventually(lambda: site.left("1:1~1")) == [worker.pid]
    assert site.bindings()["1:1"]["instances"] == [site.cards[1]]
    worker.does("close")
    eventually(lambda: list(site.bindings()) == ["1:1"])
