"""What went wrong elsewhere with what was written down."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import zlib

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

ASK = {"job": "1", "attempt": "a", "request": "rusage[gpu=1]"}


def bindings(agent):
    return {(one["job"], one["attempt"]): one for one in agent.call("ListBindings")["bindings"]}


def test_a_new_field_makes_the_checkpoint_corrupt(agent):
    """dra-driver#1080, #1326: the sum was made of what was understood, and not of what was stored.

    Fields of a newer agent are in each event here; their sums are of the stored bytes.
    """
    answer = agent.call("Prepare", **ASK)
    assert bindings(agent)
    agent.stop()
    with sqlite3.connect(agent.folder / "state" / "ledger.db") as database:
        for seq, body in database.execute("SELECT seq, body FROM events").fetchall():
            event = json.loads(body) | {"of_a_newer_agent": {"deep": [1, 2]}}
            if "ask" in event:
                event["ask"]["of_a_newer_agent"] = True
            new = json.dumps(event).encode()
            database.execute(
                "UPDATE events SET body = ?, crc = ? WHERE seq = ?", (new, zlib.crc32(new), seq)
            )
    database.close()
    agent.start()
    assert list(bindings(agent)) == [("1", "a")]
    assert agent.call("Prepare", **ASK) == answer


def test_two_processes_write_one_checkpoint(agent):
    """dra-driver#839: a cleanup read the checkpoint beside whoever wrote it, without its lock."""
    agent.call("Prepare", **ASK)
    second = agent.refused_start("--simulate", "dgx-h100")
    assert second.returncode != 0
    assert list(bindings(agent)) == [("1", "a")]
    # Every command asks the agent, and none opens the ledger by itself.
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "jobs", "--json"],
        env=agent.env, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert [one["job"] for one in json.loads(done.stdout)["bindings"]] == ["1"]
