"""Half a sysfs: nothing raises, and what is bad of one card is not of another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xce_nodeagent.host import Host
from xce_nodeagent.providers import accelerator, amd

NAMES = ("mi250", "mi300x-cpx-none", "max1550", "gaudi2", "others", "driverless", "consumer")
RUBBISH = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    st.sampled_from(
        [b"-1\n", b"0x" + b"f" * 40, b"9" * 30, b"type 11\nnode_to 99999999999999999999\n",
         b"226:-1", b"99999:5", b"a\nb\x00c", b"0x030000\n", b"simd_count 1\nlocation_id 1\n"]
    ),
)  # fmt: skip


def providers(root: Path):
    for provider in (amd.PROVIDER, accelerator.PROVIDER):
        yield provider, provider.discover(Host(root))


def check(root: Path) -> set[str]:
    """Ask both; give the addresses of what is healthy, after a look at what was answered."""
    healthy = set()
    for provider, found in providers(root):
        assert (found.state == "found") == (not found.reason)
        ids = [one.id for one in found.instances]
        assert len(ids) == len(set(ids))
        own = [node for one in found.instances if one.healthy for node in one.devices]
        assert len(own) == len(set(own))
        assert not set(own) & {control.node for control in found.control}
        json.loads(msgspec.json.encode(found))
        for one in found.instances:
            assert one.healthy or one.reason
            assert all(not isinstance(v, str) or v.isprintable() for v in one.attributes.values())
        healthy |= {one.text("pci_address") for one in found.instances if one.healthy}
        assert provider.discover(Host(root)) == found
    return healthy


@pytest.fixture(scope="module")
def written(machines, tmp_path_factory) -> dict[str, Path]:
    """Every machine, written once; who changes one puts it right again."""
    folder = tmp_path_factory.mktemp("machines")
    return {name: machines.write(folder / name, name) for name in NAMES}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rubbish_in_files(machines, written, data) -> None:
    root = written[data.draw(st.sampled_from(NAMES))]
    chosen = st.lists(st.sampled_from(machines.files(root)), min_size=1, max_size=12, unique=True)
    before = {path: path.read_bytes() for path in data.draw(chosen)}
    try:
        for path in before:
            kind = data.draw(st.sampled_from(["rubbish", "gone", "folder", "loop"]))
            path.unlink()
            if kind == "rubbish":
                path.write_bytes(data.draw(RUBBISH))
            elif kind == "folder":
                path.mkdir()
            elif kind == "loop":
                path.symlink_to(path.name)
        check(root)
    finally:
        for path, text in before.items():
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            path.unlink(missing_ok=True)
            path.write_bytes(text)


@pytest.mark.parametrize("name", NAMES)
def test_folders_that_vanish(machines, tmp_path: Path, name: str) -> None:
    """One folder after another goes, of those that discovery reads."""
    root = machines.write(tmp_path / name, name)
    for path in sorted(root.glob("sys/*/*/"), reverse=True):
        shutil.rmtree(path)
        check(root)
    assert check(root) == set()


@pytest.mark.parametrize(("name", "bus"), [("mi250", "d1"), ("max1550", "42"), ("gaudi2", "1d")])
def test_one_bad_card_leaves_all_others_healthy(machines, tmp_path, name: str, bus: str) -> None:
    root = machines.write(tmp_path / name, name)
    whole = check(root)
    home = next(root.glob(f"sys/devices/pci0000:*/0000:{bus}:00.0"))
    files = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in files:
        text = path.read_bytes()
        for bad in (b"", b"\xff\xfe\x00", b"9" * 300):
            path.write_bytes(bad)
            assert check(root) >= whole - {f"0000:{bus}:00.0"}
        path.write_bytes(text)
    assert check(root) == whole


def test_links_that_lead_in_circles(machines, tmp_path: Path) -> None:
    root = machines.write(tmp_path / "mi250", "mi250")
    whole = check(root)
    for name in ("driver", "drm"):
        path = root / f"sys/devices/pci0000:c0/0000:c1:00.0/{name}"
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        path.symlink_to(name)
        assert check(root) >= whole - {"0000:c1:00.0"}
