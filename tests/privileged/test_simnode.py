"""The nodes of a simulated machine: made, corrected, removed, and nothing else touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from xce_nodeagent.errors import BadConfig, Enforcement
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import simnode

pytestmark = pytest.mark.needs("root")
PROC = Path("/proc")


@pytest.fixture
def folder(scratch):
    yield scratch / "sim"
    for path, folders, files in os.walk(scratch / "sim", topdown=False):
        for name in files:
            os.unlink(os.path.join(path, name))
        for name in folders:
            os.rmdir(os.path.join(path, name))


@pytest.fixture
def wanted(folder, local_majors):
    first, second = local_majors
    return (
        DeviceNode(f"{folder}/nvidia0", "c", first, 0),
        DeviceNode(f"{folder}/nvidiactl", "c", first, 255),
        DeviceNode(f"{folder}/nvidia-caps/nvidia-cap1", "c", second, 1),
    )


def found(folder):
    return {
        str(path): (os.major(path.lstat().st_rdev), os.minor(path.lstat().st_rdev))
        for path in folder.rglob("*")
        if stat.S_ISCHR(path.lstat().st_mode)
    }


def test_nodes_are_made_with_their_numbers_and_modes(folder, wanted):
    old = os.umask(0o077)
    try:
        made = simnode.make(str(folder), wanted, proc=PROC)
    finally:
        os.umask(old)
    assert made == {Device.of(node) for node in wanted}
    assert found(folder) == {node.path: (node.major, node.minor) for node in wanted}
    for path in (folder, folder / "nvidia-caps"):
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid) == (0o755, 0)
    assert stat.S_IMODE((folder / "nvidia0").stat().st_mode) == 0o666
    simnode.remove(str(folder))
    assert not folder.exists()


def test_making_again_corrects_and_removes_what_is_not_wanted(folder, wanted, local_majors):
    simnode.make(str(folder), wanted, proc=PROC)
    inode = (folder / "nvidia0").stat().st_ino
    (folder / "nvidiactl").unlink()
    os.mknod(folder / "nvidiactl", stat.S_IFCHR | 0o600, os.makedev(local_majors[1], 9))
    os.mknod(folder / "stale", stat.S_IFCHR | 0o600, os.makedev(local_majors[1], 9))
    for _ in range(2):
        simnode.make(str(folder), wanted, proc=PROC)
        assert found(folder) == {node.path: (node.major, node.minor) for node in wanted}
    assert (folder / "nvidia0").stat().st_ino == inode
    simnode.make(str(folder), wanted[:1], proc=PROC)
    assert not (folder / "nvidia-caps").exists()


def test_removal_leaves_what_is_not_ours(folder, wanted):
    simnode.make(str(folder), wanted, proc=PROC)
    (folder / "notes").write_text("mine")
    os.mknod(folder / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    simnode.remove(str(folder))
    assert {path.name for path in folder.iterdir()} == {simnode.MARKER, "notes", "null"}


def test_removal_of_what_never_was_is_fine(folder):
    simnode.remove(str(folder))


def test_folder_of_somebody_else_is_refused_and_left(folder, wanted):
    folder.mkdir()
    (folder / "notes").write_text("mine")
    with pytest.raises(Enforcement, match="was not made by us"):
        simnode.make(str(folder), wanted, proc=PROC)
    simnode.remove(str(folder))
    assert [path.name for path in folder.iterdir()] == ["notes"]


def test_empty_folder_that_only_root_can_write_to_is_taken(folder, wanted):
    folder.mkdir()
    simnode.make(str(folder), wanted, proc=PROC)
    assert len(found(folder)) == 3


@pytest.mark.parametrize("loosen", ["mode", "owner"])
def test_folder_that_others_can_write_to_is_refused(folder, wanted, loosen):
    simnode.make(str(folder), wanted, proc=PROC)
    if loosen == "mode":
        folder.chmod(0o777)
    else:
        os.chown(folder, 61499, 61499)
    with pytest.raises(Enforcement, match="was not made by us"):
        simnode.make(str(folder), wanted, proc=PROC)
    simnode.remove(str(folder))
    assert len(found(folder)) == 3


def test_symbolic_links_are_not_followed(folder, wanted, scratch):
    elsewhere = scratch / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(Enforcement, match="not a link"):
        simnode.make(str(folder), wanted, proc=PROC)
    folder.unlink()
    simnode.make(str(folder), wanted[:1], proc=PROC)
    (folder / "nvidia-caps").symlink_to(elsewhere)
    with pytest.raises(OSError, match="nvidia-caps"):
        simnode.make(str(folder), wanted, proc=PROC)
    assert list(elsewhere.iterdir()) == []
    (folder / "nvidia-caps").unlink()
    elsewhere.rmdir()


@pytest.mark.parametrize(
    ("kind", "major", "minor"), [("c", 1, 3), ("c", 64, 0), ("b", 60, 0), ("c", 60, 1 << 20)]
)
def test_numbers_that_are_not_for_local_use_are_refused(folder, kind, major, minor):
    with pytest.raises(BadConfig, match="local use"):
        simnode.make(str(folder), [DeviceNode(f"{folder}/x", kind, major, minor)], proc=PROC)
    assert not folder.exists()


@pytest.mark.parametrize("path", ["/dev/x", "{}", "{}/", "{}/../x", "{}//x", "{}x/y"])
def test_paths_outside_the_folder_are_refused(folder, local_majors, path):
    node = DeviceNode(path.format(folder), "c", local_majors[0], 0)
    with pytest.raises(BadConfig, match="expected a path below"):
        simnode.make(str(folder), [node], proc=PROC)
    assert not folder.exists()


def test_major_that_a_driver_has_is_refused(folder, wanted, tmp_path, local_majors):
    (tmp_path / "devices").write_text(f"Character devices:\n{local_majors[0]:3} my-driver\n")
    with pytest.raises(Enforcement, match="taken on this host by my-driver"):
        simnode.make(str(folder), wanted, proc=tmp_path)
    assert not folder.exists()
