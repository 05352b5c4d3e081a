"""The kernel's lists of drivers, as texts."""

from __future__ import annotations

from pathlib import Path

from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import majors

DEVICES = """\
Character devices:
  1 mem
  4 /dev/vc/0
  4 tty
195 nvidia
195 nvidiactl
511 nvidia-caps-imex-channels

Block devices:
  7 loop
259 blkext
"""


def test_character_half_of_proc_devices(tmp_path):
    (tmp_path / "devices").write_text(DEVICES)
    assert majors.character_drivers(tmp_path) == {
        1: {"mem"},
        4: {"/dev/vc/0", "tty"},
        195: {"nvidia", "nvidiactl"},
        511: {"nvidia-caps-imex-channels"},
    }


def test_list_of_misc_devices(tmp_path):
    assert majors.misc_minors(tmp_path) == {}
    (tmp_path / "misc").write_text("125 rdma_cm\n229 fuse\n  1 psaux\n")
    assert majors.misc_minors(tmp_path) == {125: "rdma_cm", 229: "fuse", 1: "psaux"}


def test_lists_of_this_host_can_be_read():
    drivers = majors.character_drivers(Path("/proc"))
    assert "mem" in drivers[1]
    assert not drivers[1] & majors.DRIVERS
    assert all(isinstance(minor, int) for minor in majors.misc_minors(Path("/proc")))


def test_the_kernels_own_classes_of_cards_can_be_managed(tmp_path):
    """Their majors: drm 226 and accel 261 are fixed, kfd and habanalabs are given at load time."""
    (tmp_path / "devices").write_text(
        "Character devices:\n226 drm\n234 habanalabs\n235 kfd\n261 accel\n 29 fb\n"
    )
    cards = [Device("c", major, 128) for major in (226, 234, 235, 261)]
    assert majors.foreign(cards, made=(), proc=tmp_path) == {}
    (screen,) = majors.foreign([Device("c", 29, 0)], made=(), proc=tmp_path).values()
    assert "belongs to fb" in screen
    (block,) = majors.foreign([Device("b", 226, 0)], made=(), proc=tmp_path).values()
    assert "no driver that is loaded" in block
