"""A reporter and a real agent: what it prints, how it fails, as whom it runs."""

from __future__ import annotations

import asyncio
import json
import os
import pwd

import pytest

from xce_nodeagent.daemon.siteprogram import SiteProgram
from xce_nodeagent.errors import BadConfig
from xce_nodeagent.model.config import parse
from xce_nodeagent.privileged.ops import Reported

root = pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf")


class Answering:
    """A runner whose answers a test gives one by one."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def call(self, request):
        return Reported("found", "", await self.answers.get())


def test_the_first_look_has_the_first_answer():
    async def scenario():
        runner, told = Answering(), asyncio.Event()
        program = SiteProgram(runner, told.set, interval=0, patience=60)
        runner.answers.put_nowait(instances({"id": "s0", "type": "scope"}))
        await program.start()
        assert [one.id for one in program.last.declared.instances] == ["s0"]
        assert not told.is_set()  # it is no change: nobody has looked yet
        runner.answers.put_nowait(instances())
        await asyncio.wait_for(told.wait(), 20)
        program.close()

    asyncio.run(scenario())


def test_a_first_answer_that_is_late_is_a_change():
    async def scenario():
        runner, told = Answering(), asyncio.Event()
        program = SiteProgram(runner, told.set, interval=0, patience=0)
        await program.start()
        assert program.last.state == "not_yet"
        runner.answers.put_nowait(instances({"id": "s0", "type": "scope"}))
        await asyncio.wait_for(told.wait(), 20)
        assert program.last.state == "found"
        program.close()

    asyncio.run(scenario())


def instances(*tables):
    document = {"type": {"scope": {"unit": "scope"}}, "instance": tables}
    return json.dumps(document).encode()


@root
def test_what_it_reports_is_given_to_jobs_and_fenced(agent2, nodes, in_job, refused):
    mine, other = nodes.make("probe0", 0), nodes.make("probe1", 1)
    secret = nodes.make("secret", 2)
    agent2.put(
        "said",
        instances(
            {"id": "s0", "type": "scope", "nodes": [mine], "environment": {"SCOPE": "left"}},
            {"id": "s1", "type": "scope", "nodes": [other]},
            {"id": "s2", "type": "scope", "nodes": [secret]},
        ),
    )
    agent2.body("cat said")
    agent2.becomes(lambda: agent2.instance("s1"))
    answer = agent2.call("Prepare", job="1", instances=["s0"])
    assert (answer["env"]["SCOPE"], answer["env"]["XCE_NODES_SCOPE"]) == ("left", mine)
    job = in_job(*answer["cgroup"].values())
    assert [job.opens(mine), job.opens(other), job.opens(secret)] == ["ENXIO", "EPERM", "ENXIO"]
    with pytest.raises(refused, match=r"no pattern in \[reporter\] nodes has it"):
        agent2.call("Prepare", job="2", instances=["s2"])
    checks = {one["name"]: one for one in agent2.call("Doctor")["checks"]}
    assert checks["helpers"]["state"] != "fault"  # another test has it replaced
    assert "runner" in checks["helpers"]["text"]


@root
def test_a_device_that_gets_another_id_is_still_its_jobs(agent2, nodes, refused):
    mine, other = nodes.make("probe0", 0), nodes.make("probe1", 1)

    def report(name: str) -> None:
        tables = [(name, mine), ("s1", other)]
        agent2.put(
            "said", instances(*({"id": i, "type": "scope", "nodes": [n]} for i, n in tables))
        )
        agent2.becomes(lambda: agent2.instance(name))

    agent2.body("cat said")
    report("s0")
    agent2.call("Prepare", job="1", instances=["s0"])
    report("s9")
    with pytest.raises(refused, match="s9 is held by job '1'"):
        agent2.call("Prepare", job="2", instances=["s9"])
    answer = agent2.call("Prepare", job="2", request="rusage[scope=1]")
    assert answer["instances"] == ["s1"]
    agent2.call("Release", job="1")
    assert agent2.call("Prepare", job="3", instances=["s9"])["instances"] == ["s9"]


@root
def test_while_it_fails_what_was_known_stays(agent2, nodes):
    path = nodes.make("probe0", 0)
    agent2.put("said", instances({"id": "s0", "type": "scope", "nodes": [path]}))
    agent2.body("cat said")
    agent2.becomes(lambda: agent2.instance("s0"))
    twice = {"id": "s0", "type": "scope"}
    for wrong, why in (
        (instances(twice, twice), "is declared already"),
        (b"\xff", "expected JSON"),
    ):
        agent2.put("said", wrong)
        agent2.becomes(lambda why=why: any(why in one for one in agent2.problems("reported")))
        assert agent2.instance("s0")["healthy"]
    # its node is looked at all the same
    os.unlink(path)
    agent2.becomes(lambda: not agent2.instance("s0")["healthy"])
    nodes.make("probe0", 9)
    agent2.becomes(lambda: [d["minor"] for d in agent2.instance("s0")["devices"]] == [9])
    agent2.put("said", instances())
    agent2.becomes(lambda: agent2.instance("s0") is None)
    assert agent2.problems("reported") == []


@root
def test_one_that_fails_or_hangs_is_told_and_delays_nobody(agent2):
    agent2.body("echo 'no board' >&2; exit 7")
    (told,) = agent2.becomes(lambda: [p for p in agent2.problems("reported") if "exit" in p])
    assert told.endswith("exit status 7: no board")
    assert any("no board" in one["text"] for one in agent2.call("Doctor")["checks"])
    agent2.body("echo broken >&2; sleep 1000")
    agent2.becomes(lambda: "did not end within 2 s" in "".join(agent2.problems("reported")))
    assert agent2.call("Prepare", job="1")["enforcement"] == "cgroup2"


@root
@pytest.mark.parametrize("signal", ["STOP", "KILL"])
def test_one_that_stops_or_kills_the_runner_harms_itself_alone(agent2, signal):
    """They are of one uid."""
    agent2.put("said", instances({"id": "s0", "type": "scope"}))
    agent2.body("cat said")
    agent2.becomes(lambda: agent2.instance("s0"))
    agent2.body(f"kill -{signal} $PPID; sleep 1000")
    agent2.becomes(lambda: "the runner does not answer" in "".join(agent2.problems("reported")))
    assert agent2.instance("s0")
    assert agent2.call("Prepare", job="1")["enforcement"] == "cgroup2"
    agent2.body("cat said")
    agent2.becomes(lambda: not agent2.problems("reported"), 60)


@root
def test_it_runs_as_the_user_that_is_configured_with_no_privilege(agent2):
    """It says itself who it is, by an attribute of an instance."""
    agent2.body(
        """caps=$(sed -n 's/^CapEff:.//p; s/^NoNewPrivs:.//p' /proc/self/status | tr '\\n' ' ')
        unshare --user true 2>/dev/null && caps=all
        printf '{"instance": [{"id": "s", "type": "scope", "attributes":'
        printf '{"who": "%s %s"}}]}' $(id -u) "$caps" """
    )
    told = agent2.becomes(lambda: agent2.instance("s"))["attributes"]["who"]
    assert told == f"{pwd.getpwnam('daemon').pw_uid} {0:016x} 1 "


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('program = ["probe"]', "expected the absolute path of a program first"),
        ('program = "/bin/true"', "expected a list"),
        ('nodes = ["/dev/*"]', "must begin with a letter or digit"),
        ('nodes = ["/dev/a/../b"]', "expected a list of paths"),
        ("timeout_seconds = 0", "1 to 3600"),
        ('user = "No Body"', "expected the name of an account"),
    ],
)
def test_a_wrong_configuration_is_refused(keys, said):
    with pytest.raises(BadConfig, match=r"c\.toml:2: ") as error:
        parse(f"[reporter]\n{keys}\n", "c.toml")
    assert said in error.value.message


@root
@pytest.mark.parametrize(
    ("agents", "user", "why"),
    [
        ("xce-nodeagent", "nobody-there", "there is no such account"),
        ("daemon", "daemon", "the agent's own accounts are for the agent alone"),
    ],
)
def test_a_user_that_may_not_be_is_told_at_the_start(agent2, tmp_path, agents, user, why):
    config = tmp_path / "c.toml"
    reporter = f"[reporter]\nprogram = ['/bin/true']\nuser = '{user}'\n"
    config.write_text(f"[agent]\nuser = '{agents}'\n{reporter}", "utf-8")
    done = agent2.running.refused_start("--config", str(config))
    assert done.returncode == 78
    assert f"[reporter] user = '{user}': {why}" in done.stderr
