"""Declared instances and a real agent: files, nodes, and what a job can open."""

from __future__ import annotations

import stat

import pytest

pytestmark = [pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf"), pytest.mark.timeout(120)]


def fpga(name, node, more=""):
    return f'[[instance]]\nid = "{name}"\ntype = "fpga"\nnodes = ["{node}"]\n{more}\n'


def test_a_job_opens_the_node_that_it_was_given_and_no_other(agent, nodes, in_job):
    one, two, free = (nodes.make(name, minor) for minor, name in enumerate(("a0", "a1", "a2")))
    agent.write(
        "fpga.toml",
        '[type.fpga]\nunit = "card"\nmeaning = "an Alveo U250"\n'
        + fpga("fpga0", one, f'environment = {{ FPGA_NODE = "{one}" }}\nnuma_node = 1')
        + fpga("fpga1", two, f'environment = {{ FPGA_NODE = "{two}" }}'),
    )
    agent.becomes(lambda: agent.instance("fpga1"))
    answer = agent.call("Prepare", job="1", request="rusage[fpga=1]")
    (given,) = answer["instances"]
    mine, others = (one, two) if given == "fpga0" else (two, one)
    assert answer["env"]["XCE_INSTANCES_FPGA"] == given
    assert answer["env"]["XCE_NODES_FPGA"] == answer["env"]["FPGA_NODE"] == mine
    (cgroup,) = answer["cgroup"].values()
    job = in_job(cgroup)
    assert job.opens(mine) == "ENXIO"  # the fence lets it through; there is no driver
    assert job.opens(others) == "EPERM"
    assert job.opens(free) == "ENXIO"  # nobody declared it
    answer = agent.call("Prepare", job="2")
    (cgroup,) = answer["cgroup"].values()
    other = in_job(cgroup)
    assert [other.opens(one), other.opens(two)] == ["EPERM", "EPERM"]
    kinds = {kind["name"]: kind for kind in agent.call("GetInventory")["types"]}
    assert (kinds["fpga"]["unit"], kinds["fpga"]["meaning"]) == ("card", "an Alveo U250")
    assert agent.instance("fpga0")["attributes"]["numa_node"] == 1


def test_what_comes_goes_and_comes_as_something_else_is_seen(agent2, nodes, refused):
    path = f"{nodes.folder}/later/b0"
    agent2.write("fpga.toml", fpga("fpga0", path))
    gone = agent2.becomes(lambda: agent2.instance("fpga0"))
    assert (gone["healthy"], gone["devices"]) == (False, [])
    assert gone["reason"] == f"{path}: there is no such node"
    with pytest.raises(refused, match="there is no such node") as error:
        agent2.call("Prepare", job="1", instances=["fpga0"])
    assert error.value.code == "unhealthy"

    (nodes.folder / "later").mkdir()
    nodes.make("later/b0", 7)
    there = agent2.becomes(lambda: (i := agent2.instance("fpga0"))["healthy"] and i)
    assert there["devices"] == [{"path": path, "type": "c", "major": 126, "minor": 7}]

    (nodes.folder / "later/b0").unlink()
    nodes.make("later/b0", 8)
    agent2.becomes(lambda: [d["minor"] for d in agent2.instance("fpga0")["devices"]] == [8])

    (nodes.folder / "later/b0").unlink()
    nodes.make("later/b0", 8, stat.S_IFBLK)
    agent2.becomes(lambda: "block device" in agent2.instance("fpga0")["reason"])
    (nodes.folder / "later/b0").unlink()
    (nodes.folder / "later/b0").touch()
    agent2.becomes(lambda: "it is no device" in agent2.instance("fpga0")["reason"])


def test_a_link_that_leads_elsewhere_is_followed(agent2, nodes, in_job):
    """As udev's are, when a thing is plugged in again and has another number."""
    before, after = nodes.make("p/1", 1), nodes.make("p/2", 2)
    link = nodes.folder / "dongle"
    link.symlink_to("p/1")
    agent2.write("f.toml", fpga("dongle", link))
    agent2.becomes(lambda: agent2.instance("dongle"))
    answer = agent2.call("Prepare", job="1", instances=["dongle"])
    assert answer["env"]["XCE_NODES_FPGA"] == before
    job = in_job(*answer["cgroup"].values())
    assert job.opens(str(link)) == "ENXIO"
    job.end()
    agent2.call("Release", job="1")
    agent2.becomes(lambda: not agent2.call("ListBindings")["bindings"])
    (nodes.folder / "other").symlink_to("p/2")
    (nodes.folder / "other").rename(link)
    agent2.becomes(lambda: agent2.instance("dongle")["devices"][0]["path"] == after)
    answer = agent2.call("Prepare", job="2", instances=["dongle"])
    job = in_job(*answer["cgroup"].values())
    assert job.opens(str(link)) == "ENXIO"


def test_a_file_with_faults_costs_its_own_instances(agent2, nodes, refused):
    agent2.write("good.toml", fpga("fpga0", nodes.make("c0", 0)))
    agent2.write("bad.toml", fpga("fpga1", nodes.make("c1", 1), 'colour = "red"\nnuma_node = -1'))
    told = agent2.becomes(agent2.problems)
    assert len(told) == 2
    assert told[0].startswith(
        "bad.toml:5: instance 1 ('fpga1'): colour: unknown key; there are id,"
    )
    assert told[1].startswith("bad.toml:6: instance 1 ('fpga1'): numa_node: -1: expected a NUMA")
    agent2.becomes(lambda: agent2.instance("fpga0"))
    assert agent2.instance("fpga1") is None
    # who asks for more than is known is not told that there can never be so many
    with pytest.raises(refused, match=r"as far as is known: declared: bad\.toml") as error:
        agent2.call("Prepare", job="1", request="rusage[fpga=2]")
    assert error.value.code == "unhealthy"
    checks = agent2.call("Doctor")["checks"]
    assert any("bad.toml:6" in one["text"] for one in checks)
    agent2.write("bad.toml", fpga("fpga1", f"{nodes.folder}/c1"))
    agent2.becomes(lambda: agent2.instance("fpga1"))
    assert agent2.problems() == []


def test_what_the_host_lives_by_and_what_others_found_is_nobodys_to_declare(agent2, nodes, refused):
    card = agent2.running.instances("gpu")[0]
    agent2.write(
        "wrong.toml",
        fpga("null", "/dev/null")
        + fpga("stolen", card["devices"][0]["path"])
        + fpga("good", nodes.make("d0", 0)),
    )
    agent2.becomes(lambda: agent2.instance("good"))
    null = agent2.instance("null")
    assert null["reason"].startswith("cannot be fenced: c 1:3 belongs to mem")
    with pytest.raises(refused, match="cannot be fenced"):
        agent2.call("Prepare", job="1", instances=["null"])
    assert agent2.instance("stolen") is None
    assert any(f"belongs to {card['id']}" in one for one in agent2.problems())
    # and the helpers were not lost over it
    checks = {one["name"]: one["state"] for one in agent2.call("Doctor")["checks"]}
    assert checks["helpers"] == "ok"


def test_what_is_of_one_silicon_with_a_card_excludes_it(agent2, nodes, refused):
    card, other = (one["id"] for one in agent2.running.instances("gpu")[:2])
    agent2.write(
        "f.toml",
        fpga("bridge", nodes.make("g0", 0), f'overlaps = ["{card}"]')
        + fpga("wrong", nodes.make("g1", 1), 'overlaps = ["gpu-no-such"]'),
    )
    agent2.becomes(lambda: agent2.instance("bridge"))
    assert "bridge" in agent2.instance(card)["overlaps"]
    told = "wrong: it names gpu-no-such, and this host has no such instance"
    assert agent2.problems() == [told]
    assert agent2.problems("simulated") == []
    agent2.call("Prepare", job="1", instances=[card])
    with pytest.raises(refused) as error:
        agent2.call("Prepare", job="2", instances=["bridge"])
    assert error.value.code == "busy"
    agent2.call("Prepare", job="3", instances=["wrong", other])


def test_a_file_that_others_can_write_counts_for_nobody(agent2, nodes):
    path = nodes.make("e0", 0)
    agent2.write("open.toml", fpga("fpga0", path))
    agent2.becomes(lambda: agent2.instance("fpga0"))
    (agent2.files / "open.toml").chmod(0o666)
    agent2.becomes(lambda: agent2.instance("fpga0") is None)
    assert any("others can write to it" in one for one in agent2.problems())


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_binder_that_is_new_knows_what_is_declared(agent, nodes, in_job):
    """It is killed while a job holds a declared node, and the fence holds with the next one."""
    one, two = nodes.make("f0", 0), nodes.make("f1", 1)
    agent.write("fpga.toml", fpga("fpga0", one) + fpga("fpga1", two))
    agent.becomes(lambda: agent.instance("fpga1"))
    answer = agent.call("Prepare", job="1", instances=["fpga0"])
    agent.running.kill()
    agent.running.start()
    again = agent.call("Prepare", job="2", instances=["fpga1"])
    first, second = (in_job(*a["cgroup"].values()) for a in (answer, again))
    assert [first.opens(one), first.opens(two)] == ["ENXIO", "EPERM"]
    assert [second.opens(one), second.opens(two)] == ["EPERM", "ENXIO"]
