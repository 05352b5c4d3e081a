"""A ledger of a later version, as who rolls back has it: no grants; jobs run and are released."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3

import pytest
from ledger.test_labels import BINDING, rewrite

from xce_nodeagent.binding.version import VERSION

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


def set_version(files, version):
    """Have another version in a ledger, as far as that can be, in its log only; give its files."""
    before = files.path.stat()
    with contextlib.closing(sqlite3.connect(files.path, isolation_level=None)) as db:
        db.execute("PRAGMA wal_autocheckpoint=0")
        db.execute("UPDATE meta SET value=? WHERE key='version'", (str(version),))
        content = {path: path.read_bytes() for path in (files.path, files.wal)}
    for path, data in content.items():  # SQLite folded it in
        path.write_bytes(data)
        os.chown(path, before.st_uid, before.st_gid)
    files.path.with_name("ledger.db-shm").unlink(missing_ok=True)
    return content


def word(agent):
    """Give what doctor says of the ledger."""
    return next(c for c in agent.call("Doctor")["checks"] if c["name"] == "ledger")


def names(agent):
    return {view["job"]: view["state"] for view in agent.call("ListBindings")["bindings"]}


def prepare(agent, job, card, **more):
    answer = agent.call("Prepare", job=job, attempt="1", instances=[card], **more)
    return answer["cgroup"]["v2"]


def release(agent, job):
    told = agent.call("Release", job=job, attempt="1")
    return told["known"], told["clean"], told["recorded"]


def test_beside_a_later_ledger_jobs_run_and_are_released_until_the_later_version_is_back(
    agent2, ledger_of, jobs, in_job, refused
):
    files = ledger_of(agent2)
    found = agent2.instances("gpu")
    one, two, three, four, five, six, *_ = [card["id"] for card in found]
    nodes = {card["id"]: card["devices"][0]["path"] for card in found}
    inside = agent2.other / "mine"
    inside.mkdir()
    runs = in_job(prepare(agent2, "runs", one))
    prepare(agent2, "ends", two)
    left = in_job(prepare(agent2, "left", three))
    prepare(agent2, "named", four, cgroup=str(inside))
    odd = prepare(agent2, "odd", five)
    assert (runs.opens(nodes[one]), left.opens(nodes[three])) == ("ENXIO", "ENXIO")
    before = jobs(agent2)
    agent2.kill()
    whole = rewrite(odd, lambda told: told | {"plan": {"steps": [{"type": "of a later version"}]}})
    content = set_version(files, VERSION + 1)
    agent2.start()

    # Who is bound is known from the cgroups; where a record is not for us, what is granted there.
    before["odd", "1"] |= {"uid": None}
    assert jobs(agent2) == before
    assert (runs.opens(nodes[one]), runs.opens(nodes[two])) == ("ENXIO", "EPERM")
    check = word(agent2)
    assert (check["state"], f"version {VERSION + 1}" in check["text"]) == ("fault", True)
    assert "install the agent that wrote it" in check["remedy"]
    with pytest.raises(refused, match="no new grants") as no:
        prepare(agent2, "new", six)
    assert no.value.code == "enforcement"
    assert release(agent2, "ends") == (True, True, False)
    assert release(agent2, "left") == (True, False, False)
    assert release(agent2, "named") == (True, True, False)
    assert release(agent2, "unknown") == (False, True, False)
    assert left.opens(nodes[three]) == "EPERM"
    with pytest.raises(refused, match="no new grants"):
        prepare(agent2, "thief", two)
    agent2.call("Doctor", repair=True)  # which sweeps, too, and nobody is in the odd one
    assert names(agent2) == {"runs": "bound", "left": "quarantined", "odd": "bound"}
    agent2.stop()
    assert {path: path.read_bytes() for path in content} == content
    assert not files.aside()

    # The later version is back. For us it is today's, and finds its ledger as it left it.
    set_version(files, VERSION)
    agent2.start()
    assert names(agent2) == {"runs": "bound", "left": "quarantined", "odd": "bound"}
    assert os.getxattr(odd, BINDING) == whole
    assert (runs.opens(nodes[one]), left.opens(nodes[three])) == ("ENXIO", "EPERM")
    for process in (runs, left):
        process.end()
    assert release(agent2, "left") == (True, True, True)
    for job, card in (("next", two), ("more", three), ("other", four)):
        prepare(agent2, job, card)


def test_without_fences_nothing_tells_who_is_bound_and_no_agent_starts(agent2, ledger_of):
    files = ledger_of(agent2)
    agent2.stop()
    content = set_version(files, 999)
    plain = agent2.config.read_text("utf-8")
    agent2.config.write_text(plain.replace("[agent]", '[agent]\nenforcement = "off"'), "utf-8")
    ended = agent2.refused_start("--simulate", "dgx-h100")
    assert (ended.returncode, "version 999" in ended.stderr) == (69, True)
    assert {path: path.read_bytes() for path in content} == content
    assert files.aside() == []
    shutil.rmtree(files.state)
    agent2.start()
