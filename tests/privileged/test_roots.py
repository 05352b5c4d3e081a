"""Which cgroups may be touched: the texts of /proc as tables, the rest on real cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.errors import BadCgroup, BadConfig
from xce_nodeagent.host.cgroup import Mount, hierarchies
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.privileged.ops import Bind, Take, Unbind, Verify, pack
from xce_nodeagent.privileged.roots import Roots, cgroups_of, openat2

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
"""
CONTAINER = """\
50 49 0:26 /pod7/c1 /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw
51 49 0:26 / /mnt/a\\040b\\134c rw - cgroup2 cgroup rw
"""


def test_mounts_of_a_hybrid_host():
    assert hierarchies(HYBRID) == (
        Mount("cgroup1", "/sys/fs/cgroup/devices", "/", (0, 33)),
        Mount("cgroup2", "/sys/fs/cgroup/unified", "/", (0, 38)),
    )


def test_mounts_show_what_part_they_show_and_unescape():
    assert hierarchies(CONTAINER) == (
        Mount("cgroup2", "/sys/fs/cgroup", "/pod7/c1", (0, 26)),
        Mount("cgroup2", "/mnt/a b\\c", "/", (0, 26)),
    )


def test_cgroups_of_a_process_are_where_they_are_mounted():
    text = "9:name=systemd:/user.slice\n5:devices:/system.slice/x.service\n0::/jobs/one:two\n"
    assert cgroups_of(text, hierarchies(HYBRID)) == {
        CgroupRef("cgroup1", "/sys/fs/cgroup/devices/system.slice/x.service"),
        CgroupRef("cgroup2", "/sys/fs/cgroup/unified/jobs/one:two"),
    }


def test_cgroup_outside_a_mount_s_part_is_not_shown():
    assert cgroups_of("0::/pod7/c1/in\n", hierarchies(CONTAINER)[:1]) == {
        CgroupRef("cgroup2", "/sys/fs/cgroup/in")
    }
    assert cgroups_of("0::/pod7/c1\n", hierarchies(CONTAINER)[:1]) == {
        CgroupRef("cgroup2", "/sys/fs/cgroup")
    }
    assert not cgroups_of("0::/pod7/c11\n", hierarchies(CONTAINER)[:1])


@given(
    st.sampled_from(["/sys/fs/cgroup/unified/r", ""]),
    st.lists(st.sampled_from(["/", "..", ".", "a", "\0", "r2", "r/", "\n"]), max_size=6),
)
def test_no_text_leads_to_anything_but_a_folder_below_the_root(prefix, pieces):
    root = CgroupRef("cgroup2", "/sys/fs/cgroup/unified/r")
    path = prefix + "".join(pieces)
    try:
        found, inside = Roots(home=None, roots=(root,))._place(CgroupRef("cgroup2", path), "any")
    except BadCgroup:
        return
    assert found == root
    assert path == f"{root.path}/{inside}"
    assert os.path.normpath(path) == path
    assert "\0" not in path


def test_openat2_goes_over_no_link_and_not_out(tmp_path):
    (tmp_path / "top/in").mkdir(parents=True)
    (tmp_path / "top/link").symlink_to("in")
    (tmp_path / "top/file").touch()
    top = os.open(tmp_path / "top", os.O_PATH)
    try:
        os.close(openat2(top, "in"))
        for path, kind in (
            ("link", OSError),
            ("..", OSError),
            ("in/../..", OSError),
            ("/", OSError),
            ("file", NotADirectoryError),
            ("none", FileNotFoundError),
        ):
            with pytest.raises(kind):
                openat2(top, path)
    finally:
        os.close(top)


# ---- on real cgroups ------------------------------------------------------------------------


def refused(world, path, **changes):
    request = Bind("mark", CgroupRef(world.backend, str(path)), pack(()), make=False)
    request = Bind(**{name: getattr(request, name) for name in request.__struct_fields__} | changes)
    return world.refusal(request)


def test_paths_that_are_never_bound(world, nodes):
    world.start(*nodes)
    outside = world.base / "outside"
    outside.mkdir()
    for path in (
        "/",
        "relative",
        "",
        world.roots,
        world.base,
        world.base.parent,
        world.home.path,
        outside,
        f"{world.roots}/../outside",
        f"{world.roots}//outside",
        f"{world.roots}/./outside",
        f"{world.roots}/",
        f"{world.roots}x",
        f"{world.roots}/none",
        f"{world.roots}/cgroup.procs",
        f"{world.roots}/a\0b",
        f"{world.roots}/{'x' * 300}",
        f"{world.roots}/{'x/' * 3000}x",
        "/dev",
        "/proc/self",
    ):
        assert refused(world, path) == "bad_cgroup", path
    for path in (outside, world.roots, world.base):
        assert "trusted.xce.binding" not in os.listxattr(path)


def test_symbolic_link_out_of_the_root_is_refused(world, nodes, tmp_path):
    # No link can be made in a cgroup file system; a root that lies above one can hold one.
    (tmp_path / "link").symlink_to(world.roots)
    world.named("job")
    world.binder = world.new_binder(roots=(CgroupRef(world.backend, str(tmp_path)),))
    world.start(*nodes)
    assert refused(world, tmp_path / "link/job") == "bad_cgroup"
    assert refused(world, tmp_path / "link") == "bad_cgroup"


def test_root_that_is_no_cgroup_or_of_the_other_kind_is_refused(world, nodes, tmp_path):
    (tmp_path / "job").mkdir()
    other = "cgroup1" if world.backend == "cgroup2" else "cgroup2"
    world.binder = world.new_binder(
        roots=(CgroupRef(world.backend, str(tmp_path)), CgroupRef(other, str(world.roots)))
    )
    world.start(*nodes)
    assert refused(world, tmp_path / "job") == "bad_cgroup"
    named = world.named("job")
    assert refused(world, "", cgroup=CgroupRef(other, named.path)) == "bad_cgroup"


def test_cgroup_of_the_agent_and_those_above_it_are_refused(world, nodes):
    agent = world.named("system/agent")
    world.binder = world.new_binder(own=(agent,))
    world.start(*nodes)
    assert refused(world, agent.path) == "bad_cgroup"
    assert refused(world, f"{world.roots}/system") == "bad_cgroup"
    world.bind(world.named("system/other"))


def test_binder_never_binds_its_own_cgroup(world, nodes, tmp_path):
    # The binder reads where it is from /proc; this one is told that it is in the allowed root.
    named = world.named("system/binder")
    (tmp_path / "self").mkdir()
    mountinfo = Path("/proc/self/mountinfo").read_text("utf-8")
    (tmp_path / "self/mountinfo").write_text(mountinfo, "utf-8")
    mount = next(m for m in hierarchies(mountinfo) if m.backend == world.backend)
    inside = named.path.removeprefix(mount.point)
    controllers = "" if world.backend == "cgroup2" else "devices"
    (tmp_path / "self/cgroup").write_text(f"0:{controllers}:{inside}\n", "utf-8")
    roots = Roots(home=None, roots=(CgroupRef(world.backend, str(world.roots)),), proc=tmp_path)
    for path in (named.path, f"{world.roots}/system"):
        with pytest.raises(BadCgroup, match=r"the agent or its helpers run in it"):
            roots.open(CgroupRef(world.backend, path))
    roots.close()


def test_populated_cgroup_is_taken_only_when_asked_for(world, nodes, prisoner):
    world.start(*nodes)
    named = world.named("busy")
    prisoner.join(named.path)
    assert refused(world, named.path) == "bad_cgroup"
    assert prisoner.may(nodes[min(nodes)], min(nodes), 2)
    world.ask(Bind("mark", named, pack(()), make=False, populated=True))
    assert not prisoner.may(nodes[min(nodes)], min(nodes), 2)


def test_process_in_a_sub_cgroup_counts(world, nodes, prisoner):
    world.start(*nodes)
    named = world.named("busy")
    prisoner.mkdir(f"{named.path}/step")
    prisoner.join(f"{named.path}/step")
    assert refused(world, named.path) == "bad_cgroup"


def test_bound_cgroup_is_a_conflict_and_its_relatives_are_refused(world, nodes):
    world.start(*nodes)
    named = world.named("a/b/c")
    world.bind(CgroupRef(world.backend, f"{world.roots}/a/b"), mark="one")
    assert refused(world, f"{world.roots}/a/b", mark="two") == "conflict"
    assert refused(world, named.path, mark="two") == "bad_cgroup"
    assert refused(world, named.path, mark="one") == "bad_cgroup"
    assert refused(world, f"{world.roots}/a", mark="two") == "bad_cgroup"
    world.bind(world.named("a/d"), mark="two")


def test_made_cgroup_lies_directly_below_the_home(world, nodes):
    world.start(*nodes)
    named = world.named("job")
    assert refused(world, named.path, make=True) == "bad_cgroup"
    assert refused(world, f"{world.home.path}/a/b", make=True) == "bad_cgroup"
    assert refused(world, f"{world.home.path}/..", make=True) == "bad_cgroup"
    assert not os.path.exists(f"{world.home.path}/a")


def test_home_s_cgroup_cannot_be_named_by_a_caller(world, nodes):
    world.start(*nodes)
    world.bind(world.job(), mark="one")
    assert refused(world, world.job().path, mark="one") == "bad_cgroup"
    os.mkdir(world.job("job-2").path)
    assert refused(world, world.job("job-2").path) == "bad_cgroup"


def test_every_operation_checks_the_path(world, nodes):
    world.start(*nodes)
    outside = CgroupRef(world.backend, str(world.base / "outside"))
    os.mkdir(outside.path)
    assert world.refusal(Unbind("mark", outside, remove=True)) == "bad_cgroup"
    assert world.refusal(Verify("mark", outside, pack(()))) == "bad_cgroup"
    assert os.path.isdir(outside.path)


def test_root_that_comes_later_and_goes_and_comes_again(world, nodes):
    later = CgroupRef(world.backend, str(world.base / "later"))
    job = CgroupRef(world.backend, f"{later.path}/job")
    world.binder = world.new_binder(roots=(later,))
    world.start(*nodes)
    assert refused(world, job.path) == "bad_cgroup"
    for _ in range(2):
        os.makedirs(job.path)
        world.bind(job)
        assert world.unbind(job).gone
        os.rmdir(later.path)
    assert refused(world, job.path) == "bad_cgroup"


def test_home_is_made_marked_and_removed_again(world, nodes):
    world.start(*nodes)
    assert "trusted.xce.home" in os.listxattr(world.home.path)
    world.binder.close()
    assert not os.path.exists(world.home.path)


def test_home_of_somebody_else_stays(world, nodes):
    os.mkdir(world.home.path)
    world.start(*nodes)
    world.binder.close()
    assert os.path.isdir(world.home.path)


def test_home_that_was_removed_is_told(world, nodes):
    world.start(*nodes)
    os.rmdir(world.home.path)
    assert world.refusal(Bind("mark", world.job(), pack(()), make=True)) == "enforcement"


def test_home_is_never_the_root_of_a_hierarchy(world, cgroup2_mount):
    roots = Roots(home=CgroupRef("cgroup2", str(cgroup2_mount)))
    with pytest.raises(BadConfig, match="root of its hierarchy"):
        roots.make_home()


def test_home_whose_parent_is_missing_is_told(world):
    world.binder = world.new_binder(home=CgroupRef(world.backend, f"{world.base}/none/home"))
    assert world.refusal(Take()) == "enforcement"
