"""What is opened below a folder stays below it, whatever its links say, quick way and slow."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.host import Host
from xce_nodeagent.host.tree import Tree


@pytest.fixture(params=["by the kernel", "by hand"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    """A recorded machine, with a secret beside it."""
    root = tmp_path / "machine"
    (root / "sys/devices/a").mkdir(parents=True)
    (root / "sys/devices/a/number").write_text("7\n")
    (tmp_path / "secret").write_text("told\n")
    (tmp_path / "machine-2").mkdir()
    (tmp_path / "machine-2/secret").write_text("told\n")
    made = Host(root)
    made._tree._by_hand = request.param == "by hand"
    return made


@pytest.mark.parametrize(
    ("link", "text"),
    [
        ("devices/a", "7"),
        ("../sys/devices/a", "7"),
        ("{root}/sys/devices/a", "7"),
        ("../../machine/sys/devices/a", "7"),  # out, and in again by the folder's own name
        ("devices/none", None),
        ("link", None),
    ],
)
def test_links_inside_are_followed(host: Host, link: str, text: str | None) -> None:
    (host.root / "sys/link").symlink_to(link.format(root=host.root))
    assert host.read("/sys/link/number") == text
    assert host.number("/sys/link/number") == (7 if text else None)
    assert host.real("/sys/link") == ("/sys/devices/a" if text else None)
    assert host.names("/sys/link") == (("number",) if text else ())


@pytest.mark.parametrize("link", ["..", "../..", "../machine-2", "{outside}", "/"])
def test_links_that_lead_out_are_none(host: Host, link: str) -> None:
    outside = host.root.parent
    (host.root / "out").symlink_to(link.format(outside=outside))
    assert host.names(f"/out/{outside}") == ()
    for name in ("/out/secret", f"/out/{outside}/secret", "/../secret", "/sys/../../secret"):
        assert host.read(name) is None
        assert host.real(name) is None
    assert Host(outside).read("/secret") == "told"


def test_what_has_no_end_or_no_writer_holds_nobody_up(host: Host) -> None:
    os.mkfifo(host.root / "fifo")
    reader = os.open(host.root / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(host.root / "fifo", os.O_WRONLY)
    os.write(writer, b"for others")
    assert host.read("/fifo") is None
    assert os.read(reader, 99) == b"for others"
    os.close(reader)
    os.close(writer)
    (host.root / "folder").mkdir()
    assert host.read("/folder") is None
    assert host.names("/sys/devices/a/number") == ()
    with (host.root / "endless").open("wb") as file:
        file.truncate(1 << 40)
    assert len(host.read("/endless", limit=1 << 16) or "") <= 1 << 17


@pytest.mark.needs("root")
def test_no_device_is_opened(host: Host) -> None:
    """Some do something then: a watchdog starts, a tape is wound back."""
    os.mknod(host.root / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    assert host.read("/zero", limit=8) is None
    assert host.real("/zero") == "/zero"


def test_a_folder_that_is_gone_leads_nowhere(host: Host) -> None:
    (host.root / "sys/link").symlink_to("devices/a")
    held = os.open(host.root / "sys/devices/a", os.O_PATH)
    try:
        (host.root / "sys/devices/a/number").unlink()
        (host.root / "sys/devices/a").rmdir()
        assert host.real("/sys/link") is None
    finally:
        os.close(held)


def test_no_descriptor_is_left(host: Host) -> None:
    host.read("/sys/devices/a/number")  # the root's own is kept
    before = len(os.listdir("/proc/self/fd"))
    (host.root / "out").symlink_to("/")
    for name in ("/sys/devices/a/number", "/none", "/out/etc", "/sys/devices/a"):
        host.read(name)
        host.real(name)
        host.names(name)
    assert len(os.listdir("/proc/self/fd")) == before


_PART = st.sampled_from(["a", "b", "..", ".", "link", "/abs"])


@given(links=st.dictionaries(st.sampled_from(["link", "a/link", "b"]), st.lists(_PART, min_size=1)),
       asked=st.lists(_PART, min_size=1, max_size=6))  # fmt: skip
def test_both_ways_agree(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, list[str]], asked: list[str]
) -> None:
    """Whatever links there are, the kernel opens what following them by hand would."""
    root = tmp_path_factory.mktemp("tree") / "root"
    (root / "a").mkdir(parents=True)
    (root / "a/file").write_text("in")
    (root.parent / "file").write_text("out")
    for name, parts in links.items():
        target = "/".join(parts)
        (root / name).symlink_to(f"{root}{target}" if target.startswith("/") else target)
    quick, slow = Tree(str(root)), Tree(str(root))
    slow._by_hand = True
    name = "/".join(asked)
    found = []
    for tree in (quick, slow):
        try:
            found.append(tree.where(f"/{name}"))
        except OSError:
            found.append(None)
    assert found[0] == found[1]
    assert Host(root).read(f"/{name}/file") in ("in", None)
