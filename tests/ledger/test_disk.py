"""A disk that is full, read-only, failing, or gone, under an agent with jobs."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

PATIENCE = 30.0


def prepare(agent, job, *instances, attempt="1", **more):
    return agent.call("Prepare", job=job, attempt=attempt, instances=list(instances), **more)


def word(agent):
    """Give doctor's check of the ledger."""
    return next(c for c in agent.call("Doctor")["checks"] if c["name"] == "ledger")


def until(true):
    """Wait until something is true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        select.select([], [], [], 0.1)


def cards(agent):
    return [instance["id"] for instance in agent.instances("gpu")]


def node_of(agent, card):
    found = next(i for i in agent.instances("gpu") if i["id"] == card)
    return found["devices"][0]["path"]


def fill(folder: Path) -> None:
    """Use all the space that a file system of our own has."""
    with (folder / "filling").open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def empty(folder: Path) -> None:
    (folder / "filling").unlink()


@pytest.fixture
def mounted(agent2):
    """Have the state of an agent on a file system of its own: give a way to mount one there."""
    state = agent2.folder / "state"
    undo = contextlib.ExitStack()

    def mount(*arguments):
        agent2.stop()
        owner = state.stat()
        shutil.rmtree(state)
        state.mkdir()
        subprocess.run(["mount", *arguments, str(state)], check=True)
        undo.callback(subprocess.run, ["umount", "--lazy", str(state)], check=True)
        os.chown(state, owner.st_uid, owner.st_gid)
        state.chmod(0o700)
        return state

    yield mount
    with contextlib.suppress(Exception):
        agent2.stop()
    undo.close()


@pytest.fixture
def small(mounted):
    """Have the state on a tmpfs of 26 MiB."""
    return mounted("-t", "tmpfs", "-o", "size=26m", "tmpfs")


@pytest.fixture
def ext4(mounted, tmp_path):
    """Have the state on an ext4 of 48 MiB, in a file."""
    if not shutil.which("mkfs.ext4"):
        pytest.skip("needs mkfs.ext4")
    # Its own disk is a tmpfs, whose end is the end of a file system: writes fail then.
    below = tmp_path / "below"
    below.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(below)], check=True)
    image = below / "image"
    with image.open("wb") as file:
        file.truncate(48 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    try:
        yield mounted("-o", "loop", str(image))
    except subprocess.CalledProcessError:
        pytest.skip("no loop devices")
    finally:
        subprocess.run(["umount", "--lazy", str(below)], check=True)


def exhaust(agent, state, refused):
    """Fill the disk, and use up what the log has of its own; give the error at its end."""
    fill(state)
    for number in range(4000):
        try:
            agent.call("Drain", id=cards(agent)[7], reason="x" * 1024)
        except refused as error:
            return error
        if number % 100 == 0:
            fill(state)
    pytest.fail("the disk is full, and 4000 events were recorded")


def test_the_ledger_cannot_be_written_on_a_full_disk_and_releases_go_on(
    agent2, small, refused, in_job
):
    agent2.start()
    one, two, three, *_ = cards(agent2)
    answer = prepare(agent2, "runs", one)
    prepare(agent2, "ends", two)
    process = in_job(answer["cgroup"]["v2"])
    assert process.opens(node_of(agent2, one)) == "ENXIO"
    assert (small / "ledger.reserve").stat().st_blocks * 512 >= 1 << 20
    error = exhaust(agent2, small, refused)
    assert (error.code, error.error_class) == ("enforcement", "node")
    with pytest.raises(refused, match="no new grants") as no:
        prepare(agent2, "new", three)
    assert no.value.code == "enforcement"
    assert word(agent2)["state"] == "fault"
    assert len(agent2.call("ListBindings")["bindings"]) == 2
    assert process.opens(node_of(agent2, one)) == "ENXIO"
    # The reserve is for this.
    released = agent2.call("Release", job="ends", attempt="1")
    assert (released["clean"], released.get("recorded", True)) == (True, True)
    assert not (small / "ledger.reserve").exists()
    with pytest.raises(refused, match="no new grants"):
        prepare(agent2, "thief", two)
    agent2.kill()
    agent2.start()
    assert [view["job"] for view in agent2.call("ListBindings")["bindings"]] == ["runs"]
    assert process.opens(node_of(agent2, one)) == "ENXIO"
    with pytest.raises(refused):
        prepare(agent2, "new", three)
    empty(small)
    until(lambda: word(agent2)["state"] != "fault")
    prepare(agent2, "new", three)
    assert (small / "ledger.reserve").exists()
    with pytest.raises(refused, match="was released"):
        prepare(agent2, "ends", two)


def test_a_release_that_cannot_be_recorded_closes_the_fence_and_says_so(
    agent2, small, refused, in_job
):
    agent2.start()
    one, two, *_ = cards(agent2)
    answer = prepare(agent2, "left", one)
    prepare(agent2, "gone", two)
    process = in_job(answer["cgroup"]["v2"])
    assert process.opens(node_of(agent2, one)) == "ENXIO"
    exhaust(agent2, small, refused)
    os.truncate(small / "ledger.reserve", 0)  # there is no reserve either
    fill(small)
    left = agent2.call("Release", job="left", attempt="1")
    assert (left["recorded"], left["clean"]) == (False, False)
    assert process.opens(node_of(agent2, one)) == "EPERM"
    gone = agent2.call("Release", job="gone", attempt="1")
    assert (gone["recorded"], gone["clean"]) == (False, True)
    again = agent2.call("Release", job="gone", attempt="1")
    assert again["recorded"] is False
    with pytest.raises(refused):
        prepare(agent2, "thief", two)
    agent2.call("Doctor", repair=True)
    assert process.opens(node_of(agent2, one)) == "EPERM"
    # Nobody asks again, and it is recorded when it can be.
    empty(small)
    until(lambda: agent2.call("Release", job="gone", attempt="1").get("recorded", True))
    agent2.kill()
    agent2.start()
    assert process.opens(node_of(agent2, one)) == "EPERM"
    (view,) = agent2.call("ListBindings")["bindings"]
    assert (view["job"], view["state"]) == ("left", "quarantined")
    prepare(agent2, "next", two)
    with pytest.raises(refused, match="was released"):
        prepare(agent2, "gone", two)


def test_an_unrecorded_release_stands_after_the_agent_s_death(agent2, small, refused, in_job):
    agent2.start()
    one, *_ = cards(agent2)
    answer = prepare(agent2, "left", one)
    process = in_job(answer["cgroup"]["v2"])
    assert process.opens(node_of(agent2, one)) == "ENXIO"
    exhaust(agent2, small, refused)
    os.truncate(small / "ledger.reserve", 0)
    fill(small)
    assert agent2.call("Release", job="left", attempt="1")["recorded"] is False
    agent2.kill()
    agent2.start()
    assert process.opens(node_of(agent2, one)) == "EPERM"
    process.end()
    until(lambda: not agent2.call("ListBindings")["bindings"])


def test_a_read_only_disk_at_the_start_leaves_jobs_and_releases(agent2, small, refused, in_job):
    agent2.start()
    one, two, three, *_ = cards(agent2)
    answer = prepare(agent2, "runs", one)
    prepare(agent2, "ends", two)
    process = in_job(answer["cgroup"]["v2"])
    assert process.opens(node_of(agent2, one)) == "ENXIO"
    agent2.kill()
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    agent2.start()
    assert {view["job"] for view in agent2.call("ListBindings")["bindings"]} == {"runs", "ends"}
    assert process.opens(node_of(agent2, one)) == "ENXIO"
    with pytest.raises(refused, match="no new grants"):
        prepare(agent2, "new", three)
    assert word(agent2)["state"] == "fault"
    assert agent2.call("Release", job="ends", attempt="1")["recorded"] is False
    with pytest.raises(refused):
        prepare(agent2, "thief", two)
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    until(lambda: word(agent2)["state"] != "fault")
    prepare(agent2, "new", three)
    agent2.kill()
    agent2.start()
    assert {view["job"] for view in agent2.call("ListBindings")["bindings"]} == {"runs", "new"}
    with pytest.raises(refused, match="was released"):
        prepare(agent2, "ends", two)


@pytest.mark.parametrize("how", ["aborted", "lost"])
def test_a_disk_that_fails_under_the_agent(agent2, ext4, refused, how, tmp_path):
    agent2.start()
    one, two, three, *_ = cards(agent2)
    prepare(agent2, "runs", one)
    prepare(agent2, "ends", two)
    if how == "aborted":
        subprocess.run(["mount", "-o", "remount,abort", str(ext4)], check=True)
    else:
        os.truncate(tmp_path / "below" / "image", 4096)
        fill(tmp_path / "below")
    with pytest.raises(refused) as no:
        prepare(agent2, "new", three)
    assert no.value.code == "enforcement"
    assert word(agent2)["state"] == "fault"
    assert agent2.call("Release", job="ends", attempt="1")["recorded"] is False
    with pytest.raises(refused) as no:
        prepare(agent2, "thief", two)
    assert no.value.code == "enforcement"
    assert [view["job"] for view in agent2.call("ListBindings")["bindings"]] == ["runs"]
    assert agent2.call("GetInventory")["instances"]


def test_a_state_folder_that_is_removed_is_made_good_when_it_is_back(agent2, refused):
    state = agent2.folder / "state"
    owner = state.stat()
    one, two, three, *_ = cards(agent2)
    prepare(agent2, "runs", one)
    prepare(agent2, "ends", two)
    shutil.rmtree(state)
    with pytest.raises(refused, match="no new grants"):
        prepare(agent2, "new", three)
    assert agent2.call("Release", job="ends", attempt="1")["recorded"] is False
    assert word(agent2)["state"] == "fault"
    state.mkdir()
    os.chown(state, owner.st_uid, owner.st_gid)
    until(lambda: word(agent2)["state"] != "fault")
    prepare(agent2, "new", three)
    agent2.kill()
    agent2.start()
    assert {view["job"] for view in agent2.call("ListBindings")["bindings"]} == {"runs", "new"}
    with pytest.raises(refused, match="was released"):
        prepare(agent2, "ends", two)


def test_what_an_agent_told_that_began_on_a_full_disk_is_written_when_there_is_space(
    agent2, small, refused
):
    agent2.start()
    one, two, *_ = cards(agent2)
    prepare(agent2, "runs", one)
    agent2.call("Drain", id=two, reason="fan")
    agent2.kill()
    for path in small.glob("ledger.db-shm"):
        path.unlink()
    fill(small)
    agent2.start()
    told = agent2.call("GetInventory")
    assert word(agent2)["state"] == "fault"
    empty(small)
    until(lambda: word(agent2)["state"] != "fault")
    assert agent2.call("GetInventory")["generation"] == told["generation"]
    check = word(agent2)
    assert (check["state"], check["remedy"]) == ("note", "")
    assert "could not be opened for writing" in check["text"]
    assert "nothing is missing" in check["text"]
    agent2.kill()
    agent2.start()
    assert agent2.call("GetInventory")["generation"] == told["generation"]
    assert word(agent2)["text"] == check["text"]
    (drained,) = [i for i in agent2.instances("gpu") if i["drained"]]
    assert drained["id"] == two
