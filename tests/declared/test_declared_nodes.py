"""Whose word counts for a device node: root's files, in folders that are root's, and no other's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from xce_nodeagent.host import Host, declared
from xce_nodeagent.host.declared import NoNode
from xce_nodeagent.model.declaration import Declaration
from xce_nodeagent.model.rule import Device
from xce_nodeagent.model.site import Site
from xce_nodeagent.privileged import majors
from xce_nodeagent.privileged.binder import Binder
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.ops import Manage, Take

pytestmark = pytest.mark.needs("root")
PROC = Path("/proc")
PLAIN = 12345


@pytest.fixture
def folder(tmp_path):
    tmp_path.chmod(0o755)
    return tmp_path


def fpga(path):
    return f'[[instance]]\nid = "fpga0"\ntype = "fpga"\nnodes = ["{path}"]\n'


def test_root_alone_declares(folder, nodes):
    path = nodes.make("a", 3)
    device = Device("c", 126, 3)
    file = folder / "f.toml"
    file.write_text(fpga(path))
    site = Site(str(folder))
    assert declared.devices(site) == {device}
    majors.check([device], made=(), proc=PROC, declared=lambda: declared.devices(site))

    def refused(why):
        assert declared.devices(site) == set()
        assert why in declared.read(site).faults[0]
        with pytest.raises(Violation, match="never managed"):
            majors.check([device], made=(), proc=PROC, declared=lambda: declared.devices(site))

    os.chown(file, PLAIN, PLAIN)
    refused(f"it belongs to uid {PLAIN}")
    os.chown(file, 0, 0)
    file.chmod(0o664)
    refused("others can write to it (mode 0664)")
    file.chmod(0o644)
    folder.chmod(0o777)
    refused("others can write to it (mode 0777)")
    folder.chmod(0o755)
    file.rename(folder / "away")
    (folder / "f.toml").symlink_to(folder / "away")
    refused("Too many levels of symbolic links")
    (folder / "f.toml").unlink()
    os.mkfifo(folder / "f.toml")
    refused("expected a file")
    (folder / "f.toml").unlink()
    (folder / "f.toml").write_bytes(b"\xff")
    refused("codec can't decode")
    (folder / "f.toml").write_text(fpga(path))
    assert declared.devices(site) == {device}


def test_no_node_in_a_folder_of_others_is_followed(nodes):
    path = nodes.make("sub/a", 3)
    link = nodes.folder / "link"
    link.symlink_to("sub/a")
    assert declared.node(str(link)).minor == 3
    (nodes.folder / "sub").chmod(0o777)
    for one in (path, str(link)):
        with pytest.raises(NoNode, match="others than root can write"):
            declared.node(one)
    (nodes.folder / "sub").chmod(0o755)
    os.chown(nodes.folder / "sub", PLAIN, PLAIN)
    with pytest.raises(NoNode, match="others than root can write"):
        declared.node(path)
    os.chown(nodes.folder / "sub", 0, 0)
    for target, why in (
        ("/etc/passwd", "leads out of /dev"),
        (str(link), "too many links|symbolic"),
        ("../shm/x", "others than root|leads out"),
        ("nothing", "there is no such node"),
        ("/dev", "leads out|no device"),
    ):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(NoNode, match=why):
            declared.node(str(link))


def test_no_link_in_a_folder_of_others_is_followed(nodes):
    """They could lead to any other device that root keeps in a folder of its own."""
    nodes.make("own/a", 3)
    shared = nodes.folder / "shared"
    shared.mkdir()
    (shared / "way").symlink_to("../own")
    (nodes.folder / "to").symlink_to("shared/way/a")
    assert declared.node(f"{nodes.folder}/to").path == f"{nodes.folder}/own/a"
    pattern = f"{nodes.folder}/*/*"
    assert f"{shared}/way" in list(declared.matching([pattern]))
    shared.chmod(0o1777)
    for one in (f"{shared}/way/a", f"{nodes.folder}/to"):
        with pytest.raises(NoNode, match=f"others than root can write in {shared}"):
            declared.node(one)
    assert list(declared.matching([pattern])) == [f"{nodes.folder}/own/a"]


@pytest.mark.parametrize("name", ["null", "full", "tty", "ptmx", "console"])
def test_what_the_host_lives_by_is_refused_though_root_declares_it(name):
    found = declared.node(f"/dev/{name}")
    device = Device.of(found)
    with pytest.raises(Violation, match="never managed"):
        majors.check([device], made=(), proc=PROC, declared=lambda: {device})


def test_no_disk_is_declared(nodes, tmp_path):
    """Neither a block device, nor the generic node of a disk, nor a control node of all."""
    with pytest.raises(NoNode, match="block device"):
        declared.node(nodes.make("disk", 0, stat.S_IFBLK))
    (tmp_path / "devices").write_text(
        "Character devices:\n  4 /dev/vc/0\n  4 tty\n  4 ttyS\n 10 misc\n 21 sg\n189 usb_device\n"
        "243 nvme\n250 dax\n\nBlock devices:\n  8 sd\n"
    )
    (tmp_path / "misc").write_text("236 device-mapper\n200 tun\n120 scope\n")
    refused = [
        Device("b", 8, 0), Device("c", 21, 0), Device("c", 243, 0), Device("c", 250, 0),
        Device("c", 10, 236), Device("c", 10, 200), Device("c", 10, 7), Device("c", 4, 1),
    ]  # fmt: skip
    fine = [Device("c", 10, 120), Device("c", 189, 4), Device("c", 4, 64), Device("c", 126, 0)]
    every = {*refused, *fine}
    found = majors.foreign(every, made=(), proc=tmp_path, declared=lambda: every)
    assert set(found) == set(refused)


@pytest.mark.needs("cgroup2", "bpf")
def test_a_binder_goes_by_the_files_as_they_are_when_it_is_asked(folder, nodes):
    """A captured agent can have it manage what root declared, and nothing else."""
    site = Site(str(folder), patterns=(f"{nodes.folder}/probe*",))
    nodes.make("other", 5)
    nodes.make("probe0", 6)
    path = nodes.make("a", 4)
    binder = Binder(home=None, declared=lambda: declared.devices(site))
    try:
        binder.handle(Take())
        with pytest.raises(Violation):
            binder.handle(Manage((Device("c", 126, 4),)))
        (folder / "f.toml").write_text(fpga(path))
        binder.handle(Manage((Device("c", 126, 4), Device("c", 126, 6))))
        for wrong in (Device("c", 126, 5), Device("b", 126, 4), Device("c", 1, 3)):
            with pytest.raises(Violation):
                binder.handle(Manage((wrong,)))
    finally:
        binder.close()


def test_one_device_by_two_names_is_one_instances(nodes):
    path = nodes.make("a", 3)
    (nodes.folder / "b").symlink_to("a")
    both = [
        Declaration(id="one", type="fpga", nodes=(path,)),
        Declaration(id="two", type="fpga", nodes=(f"{nodes.folder}/b",)),
    ]
    one, two = declared.instances(Host("/"), "declared", both)
    assert (one.healthy, two.healthy, two.devices) == (True, False, ())
    assert two.reason == f"{nodes.folder}/b: it is a node of one as well"


def test_a_reporter_names_no_node_that_it_may_not(nodes):
    path, other = nodes.make("probe0", 3), nodes.make("secret", 4)
    named = [Declaration(id="one", type="fpga", nodes=(path, other))]
    (one,) = declared.instances(Host("/"), "reported", named, within=(f"{nodes.folder}/probe*",))
    assert [node.path for node in one.devices] == [path]
    assert one.reason == f"{other}: no pattern in [reporter] nodes has it"
    assert not one.healthy
