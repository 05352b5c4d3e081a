"""More events of folders than inotify keeps: what they would have told is looked at again.

The queue is filled for real, while the agent cannot read; what counts comes after it is full.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from xce_nodeagent.host.event import DECLARED
from xce_nodeagent.host.nodewatch import NodeWatch
from xce_nodeagent.host.sitewatch import SiteWatch
from xce_nodeagent.model.site import Site

KEPT = Path("/proc/sys/fs/inotify/max_queued_events")

real = pytest.mark.needs("root", "cgroup2", "bpf")


def flood(folder):
    """Have more told of a folder than is kept: a name that nobody waits for comes and goes."""
    other = folder / "other"
    for _ in range(int(KEPT.read_text("ascii")) // 2 + 2):
        os.close(os.open(other, os.O_WRONLY | os.O_CREAT))
        other.unlink()


def readable(watch):
    return bool(select.select([watch], [], [], 0)[0])


def test_nodes_may_have_come_when_events_were_lost_and_new_folders_are_watched(tmp_path):
    node = tmp_path / "caps" / "cap1"
    watch = NodeWatch()
    try:
        watch.follow([str(node)])
        flood(tmp_path)
        node.parent.mkdir()  # nobody is told of that
        assert watch.drain()
        assert not readable(watch)
        node.touch()
        assert readable(watch)
        assert watch.drain()
    finally:
        watch.close()


def test_declared_instances_may_have_changed_when_events_were_lost(tmp_path):
    site = Site(f"{tmp_path}/instances.d", frozenset({0, os.geteuid()}))
    watch = SiteWatch(site)
    try:
        flood(tmp_path)
        Path(site.folder).mkdir()  # nobody is told of that
        assert watch.drain() == (DECLARED,)
        assert not readable(watch)
        (Path(site.folder) / "a.toml").touch()
        assert readable(watch)
        assert watch.drain() == (DECLARED,)
    finally:
        watch.close()


@real
def test_an_agent_that_lost_events_sees_what_came_and_went_meanwhile(agent, until):
    files = agent.folder / "instances.d"
    files.mkdir(0o755)
    declare(files, "before")
    until(lambda: instance(agent, "before"), "the file is read")
    gpu = agent.instances("gpu")[0]
    node = Path(gpu["devices"][0]["path"])
    agent.process.send_signal(signal.SIGSTOP)
    try:
        flood(files)
        flood(node.parent)
        declare(files, "after")
        node.unlink()
    finally:
        agent.process.send_signal(signal.SIGCONT)
    until(lambda: instance(agent, "after"), "the other file is read")
    until(lambda: not instance(agent, gpu["id"])["healthy"], "the node is missed")
    assert instance(agent, "before")


def declare(files, name):
    draft = files / "draft"
    draft.write_text(f'[[instance]]\nid = "{name}"\ntype = "scope"\n', "utf-8")
    draft.chmod(0o644)
    draft.rename(files / f"{name}.toml")


def instance(agent, name):
    found = agent.call("GetInventory")["instances"]
    return next((one for one in found if one["id"] == name), None)
