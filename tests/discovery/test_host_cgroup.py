"""What an unprivileged process sees of cgroups, and the configured roots against it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xce_nodeagent.daemon import roots
from xce_nodeagent.errors import BadCgroup, BadConfig
from xce_nodeagent.host import cgroup
from xce_nodeagent.model.config import AgentConfig, Config
from xce_nodeagent.model.plan import CgroupRef

HYBRID = """\
30 23 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory
33 30 0:29 /lxc/a\\040b /sys/fs/cgroup/a\\040b rw shared:12 - cgroup cgroup rw,devices
"""
MOUNTED = cgroup.hierarchies(HYBRID)


def test_hierarchies_that_can_fence() -> None:
    assert list(MOUNTED) == [
        cgroup.Mount("cgroup2", "/sys/fs/cgroup/unified", "/", (0, 27)),
        cgroup.Mount("cgroup1", "/sys/fs/cgroup/a b", "/lxc/a b", (0, 29)),
    ]
    assert cgroup.mounts(HYBRID) == {
        "cgroup2": "/sys/fs/cgroup/unified", "cgroup1": "/sys/fs/cgroup/a b",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "backend"),
    [
        ("/sys/fs/cgroup/unified/not/there", "cgroup2"),
        ("/sys/fs/cgroup/a b/x", "cgroup1"),
        ("/sys/fs/cgroup/unified", None),
        ("/sys/fs/cgroup/unifiedly/x", None),
        ("/sys/fs/cgroup/memory/x", None),
        ("/etc", None),
    ],
)
def test_where_a_root_is(path: str, backend: str | None) -> None:
    assert roots.on(path, MOUNTED) == (CgroupRef(backend, path) if backend else None)


def test_every_root_in_no_hierarchy_is_told_at_once() -> None:
    good = "/sys/fs/cgroup/unified/missing"
    agent = AgentConfig(cgroup_root="/etc", cgroup_allowed_roots=(good, "/srv", "/opt/x"))
    with pytest.raises(BadConfig) as caught:
        roots.check(Config(agent=agent), MOUNTED, "c.toml")
    faults = caught.value.details["faults"]
    assert [fault.partition(": expected")[0] for fault in faults] == [
        "c.toml: [agent] cgroup_root: '/etc'",
        "c.toml: [agent] cgroup_allowed_roots: '/srv'",
        "c.toml: [agent] cgroup_allowed_roots: '/opt/x'",
    ]
    assert caught.value.message == "\n".join(faults)
    roots.check(Config(agent=AgentConfig(cgroup_root=good)), MOUNTED, "c.toml")
    off = AgentConfig(cgroup_root="/etc", enforcement="off")
    roots.check(Config(agent=off), MOUNTED, "c.toml")


@pytest.mark.parametrize(
    "command", [["xce_nodeagent", "run"], ["xce_nodeagent.daemon.helpers", "--fd", "0"]]
)
def test_they_are_told_before_anything_is_started(tmp_path: Path, command: list[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[agent]\ncgroup_root = "/etc/a"\ncgroup_allowed_roots = ["/etc/b"]\n')
    folders = {f"XCE_NODEAGENT_{name}_DIR": str(tmp_path / name) for name in ("STATE", "RUNTIME")}
    more = ["--folder", str(tmp_path / "helpers")] if "--fd" in command else []
    done = subprocess.run(
        [sys.executable, "-m", *command, *more],
        env={**os.environ, **folders, "XCE_NODEAGENT_CONFIG": str(config)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    assert f"{config}: [agent] cgroup_root: '/etc/a': expected a path below" in done.stderr
    assert f"{config}: [agent] cgroup_allowed_roots: '/etc/b': expected" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_a_process_that_has_ended_is_in_no_cgroup() -> None:
    """A zombie still has its number, and /proc still shows the cgroup that it was in."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        with pytest.raises(BadCgroup, match=f"process {child}"):
            cgroup.of_process(child, cgroup.mounts(HYBRID))
    finally:
        os.waitpid(child, 0)
    with pytest.raises(BadCgroup, match=f"process {child}"):
        cgroup.of_process(child, {})


def test_who_is_in_a_v1_cgroup_is_looked_for_in_so_many_folders_only(tmp_path: Path) -> None:
    """v2 says it in one file; here ordinary folders stand for those of v1."""
    one = CgroupRef("cgroup1", str(tmp_path))
    (tmp_path / "cgroup.procs").write_text("", "ascii")
    for number in range(cgroup.FOLDERS_LIMIT - 1):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/cgroup.procs").write_text("", "ascii")
    assert cgroup.populated(one) is False
    (tmp_path / "0/cgroup.procs").write_text("17\n", "ascii")
    assert cgroup.populated(one) is True
    (tmp_path / "0/cgroup.procs").write_text("", "ascii")
    (tmp_path / "0/more").mkdir()
    (tmp_path / "0/more/cgroup.procs").write_text("17\n", "ascii")
    assert cgroup.populated(one) is None
    assert cgroup.populated(CgroupRef("cgroup1", str(tmp_path / "none"))) is None
