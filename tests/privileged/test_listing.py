"""The binder lists what is bound: whole, in pages, and wherever a caller may have named it."""

from __future__ import annotations

import errno
import os
import resource

import pytest

from xce_nodeagent.model.rule import Rule
from xce_nodeagent.privileged.channel import Violation, encode
from xce_nodeagent.privileged.ops import RECORD_LIMIT, Bind, List, pack


def every(world, *, deep=False, restart=False):
    """List all of it, page by page; give the entries, and how many pages there were."""
    found, pages = [], 0
    while True:
        after = found[-1].cgroup if found else None
        listed = world.binder.handle(List(after, deep))
        encode(listed)  # it fits a message
        found += listed.cgroups
        pages += 1
        if not listed.more:
            return found, pages
        if restart:
            world.restart()


@pytest.mark.parametrize("restart", [False, True])
def test_long_records_come_in_pages_also_from_another_binder(world, nodes, restart):
    world.start(*nodes)
    grants = (Rule(min(nodes), 6),)
    for number in range(5):
        world.bind(
            world.job(f"job-{number}"),
            *grants,
            mark=f"{number}\n",
            record=bytes([number]) * RECORD_LIMIT,
        )
    found, pages = every(world, restart=restart)
    assert pages == 3
    assert [one.mark for one in found] == [f"{number}\n" for number in range(5)]
    assert [one.record[:1] for one in found] == [bytes([number]) for number in range(5)]
    assert all(one.grants == grants for one in found)
    assert not any(one.released or one.populated for one in found)


def test_what_a_caller_named_is_found_without_a_ledger(world, nodes, prisoner):
    world.start(*nodes)
    named = world.named("slurm/uid/job")
    world.bind(named, mark="1\n", record=b"{}")
    prisoner.join(named.path)
    world.restart()
    assert every(world) == ([], 1)
    (one,), _ = every(world, deep=True)
    assert (one.cgroup, one.mark, one.populated, one.released) == (named, "1\n", True, False)
    world.unbind(named, remove=False, mark="1\n")
    (one,), _ = every(world, deep=True)
    assert (one.released, one.grants) == (True, ())


def test_nothing_is_looked_for_where_none_can_have_been_bound(world, nodes):
    world.start(*nodes)
    world.named("loose/job")
    os.chown(world.roots / "loose", 4711, 4711)
    os.setxattr(world.roots / "loose/job", "trusted.xce.binding", b"1\n")
    assert every(world, deep=True) == ([], 1)


def test_a_record_that_is_too_long_is_a_violation(world, nodes):
    world.start(*nodes)
    request = Bind("1\n", world.job(), pack(()), make=True, record=bytes(RECORD_LIMIT + 1))
    with pytest.raises(Violation, match="record"):
        world.binder.handle(request)
    assert not os.path.exists(world.job().path)


def test_want_of_descriptors_is_no_answer(world):
    """A cgroup that could not be looked at is not one that is gone: its card would be free."""
    world.start()
    world.bind(world.named("theirs"))
    found = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/", os.O_RDONLY)
    os.close(lowest)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    for limit in range(lowest, highest + 20):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            found.append(len(world.binder.handle(List(None)).cgroups))
        except OSError as error:
            found.append(error.errno)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert set(found) == {errno.EMFILE, 1}
