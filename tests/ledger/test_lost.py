"""A ledger that is lost, put back from an old copy, or not ours, while jobs run."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf", "cgroup1")

BINDING = "trusted.xce.binding"


def prepare(agent, job, *instances, attempt="1", **more):
    return agent.call("Prepare", job=job, attempt=attempt, instances=list(instances), **more)


def cards(agent):
    return [instance["id"] for instance in agent.instances("gpu")]


def node_of(agent, card):
    found = next(i for i in agent.instances("gpu") if i["id"] == card)
    return found["devices"][0]["path"]


def cgroup_of(answer):
    return next(iter(answer["cgroup"].values()))


def word(agent):
    """Give what doctor says of the ledger."""
    return next(c for c in agent.call("Doctor")["checks"] if c["name"] == "ledger")["text"]


def test_a_missing_ledger_is_made_again_from_the_cgroups(agent, ledger_of, jobs, in_job, refused):
    one, two, three, four, *_ = cards(agent)
    inside = agent.other / "mine"
    inside.mkdir()
    ask = {"instances": [one], "ports": [{"count": 2}], "uid": 4711}
    answer = agent.call("Prepare", job="12[3]", attempt="a", **ask)
    prepare(agent, "named", two, cgroup=str(inside))
    prepare(agent, "named", three, add=True)
    process = in_job(cgroup_of(answer))
    before = jobs(agent)
    assert process.opens(node_of(agent, one)) == "ENXIO"
    agent.kill()
    ledger_of(agent).lose()
    agent.start()
    assert jobs(agent) == before
    assert process.opens(node_of(agent, one)) == "ENXIO"
    assert process.opens(node_of(agent, two)) == "EPERM"
    assert agent.call("Prepare", job="12[3]", attempt="a", **ask)["env"] == answer["env"]
    for held in (one, two, three):
        with pytest.raises(refused, match="held by"):
            prepare(agent, "thief", held)
    prepare(agent, "new", four)
    assert "2 adopted" in word(agent)
    process.end()
    assert agent.call("Release", job="12[3]", attempt="a")["clean"]
    prepare(agent, "next", one)
    agent.call("Release", job="named")
    assert inside.exists()
    assert BINDING not in os.listxattr(inside)


def test_an_old_copy_gives_nothing_away_a_second_time(agent, ledger_of, jobs, refused, tmp_path):
    one, two, three, four, *_ = cards(agent)
    prepare(agent, "grown", one)
    prepare(agent, "gone", two)
    ledger_of(agent).copy(tmp_path)
    prepare(agent, "grown", three, add=True)
    agent.call("Release", job="gone", attempt="1")
    prepare(agent, "younger", four)
    before = jobs(agent)
    number = agent.call("GetInventory")["generation"]
    agent.kill()
    ledger_of(agent).put_back(tmp_path)
    agent.start()
    assert jobs(agent) == before
    for held in (one, three, four):
        with pytest.raises(refused, match="held by"):
            prepare(agent, "thief", held)
    with pytest.raises(refused) as stale:
        prepare(agent, "late", two, generation=number)
    assert stale.value.code == "stale"
    prepare(agent, "free", two)


@pytest.mark.parametrize("value", ["the mark alone", "a cut record", "garbage"])
def test_of_a_record_that_cannot_be_read_only_its_grants_are_withheld(
    agent, ledger_of, refused, value, in_job
):
    one, two, *_ = cards(agent)
    answer = prepare(agent, "old", one)
    path = cgroup_of(answer)
    agent.kill()
    ledger_of(agent).lose()
    whole = os.getxattr(path, BINDING)
    forged = {
        "the mark alone": whole.partition(b"\n bound\n")[0],
        "a cut record": whole[: len(whole) // 2],
        "garbage": whole.partition(b"{")[0] + b"\xff\x00" * 9000,
    }
    os.setxattr(path, BINDING, forged[value])
    process = in_job(path)
    agent.start()
    (view,) = agent.call("ListBindings")["bindings"]
    assert (view["job"], view["attempt"], view["instances"]) == ("old", "1", [one])
    assert "cannot be read" in view["reason"]
    assert "in doubt: job old" in word(agent)
    assert process.opens(node_of(agent, one)) == "ENXIO"
    with pytest.raises(refused, match="held by old"):
        prepare(agent, "thief", one)
    prepare(agent, "other", two)
    agent.stop()
    agent.start()  # what is known of it is on its cgroup and in the ledger now
    assert {v["job"] for v in agent.call("ListBindings")["bindings"]} == {"old", "other"}
    assert "in doubt: job old" in word(agent)
    process.end()
    assert agent.call("Release", job="old")["clean"]
    prepare(agent, "thief", one)
    assert "in doubt" not in word(agent)


def test_a_release_stands_though_the_ledger_that_knew_it_is_lost(agent, ledger_of, in_job):
    one, *_ = cards(agent)
    answer = prepare(agent, "left", one)
    process = in_job(cgroup_of(answer))
    assert process.opens(node_of(agent, one)) == "ENXIO"
    assert not agent.call("Release", job="left")["clean"]
    agent.kill()
    ledger_of(agent).lose()
    agent.start()
    (view,) = agent.call("ListBindings")["bindings"]
    assert (view["state"], view["instances"]) == ("quarantined", [one])
    assert process.opens(node_of(agent, one)) == "EPERM"
    process.end()
    assert agent.call("Release", job="left")["clean"]
    assert agent.call("ListBindings")["bindings"] == []


def test_a_release_stands_though_the_ledger_is_put_back_from_before_it(
    agent, ledger_of, in_job, tmp_path
):
    one, *_ = cards(agent)
    answer = prepare(agent, "left", one)
    process = in_job(cgroup_of(answer))
    assert process.opens(node_of(agent, one)) == "ENXIO"
    ledger_of(agent).copy(tmp_path)
    agent.call("Release", job="left")
    agent.kill()
    ledger_of(agent).put_back(tmp_path)
    agent.start()
    assert process.opens(node_of(agent, one)) == "EPERM"
    (view,) = agent.call("ListBindings")["bindings"]
    assert view["state"] == "quarantined"


def test_no_generation_is_told_twice_in_a_boot(agent2, ledger_of):
    agent2.call("Drain", id=cards(agent2)[0], reason="test")
    told = agent2.call("GetInventory")["generation"]
    agent2.kill()
    ledger_of(agent2).lose()
    agent2.start()
    now = agent2.call("GetInventory")["generation"]
    assert now.rpartition(":")[0] == told.rpartition(":")[0]
    assert int(now.rpartition(":")[2]) > int(told.rpartition(":")[2])


def test_a_ledger_of_another_user_is_told_and_left(agent2, ledger_of):
    files = ledger_of(agent2)
    prepare(agent2, "1", cards(agent2)[0])
    agent2.kill()
    os.chown(files.path, 0, 0)
    files.path.chmod(0o600)
    before = files.path.read_bytes()
    ended = agent2.refused_start("--simulate", "dgx-h100")
    assert (ended.returncode, "give the file back" in ended.stderr) == (78, True)
    assert files.path.read_bytes() == before
    assert files.aside() == []
    owner = files.state.stat()
    os.chown(files.path, owner.st_uid, owner.st_gid)
    agent2.start()
    assert [view["job"] for view in agent2.call("ListBindings")["bindings"]] == ["1"]
