"""What tests may need of the machine: detected here, skipped with a reason where it is missing.

`XCE_REQUIRE=root,cgroup2,...` (or `all`) turns such a skip into a failure: a skip that hides a
broken test is a defect.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import wire.agent
from agent.running import InJob, Refused
from binding.node import Node
from hypothesis import settings
from machines.small import write
from recorded import recording
from worker import Deal, Worker

# Who starts the tests may ignore these (nohup, a background job), and a child would inherit that.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        _again = signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, _again)


def _mounted(kind: str, option: str = "") -> Path | None:
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        _, where, fstype, options, *_ = line.split()
        if fstype == kind and (not option or option in options.split(",")):
            return Path(where)
    return None


def _root() -> str:
    return "" if os.geteuid() == 0 else "needs root"


def _may_unshare(*options: str) -> str:
    """Say why namespaces cannot be made: root in a container of somebody's often may not."""
    done = subprocess.run(["unshare", *options, "true"], check=False, capture_output=True)
    return "" if done.returncode == 0 else f"may not unshare {' '.join(options)}"


def _writable(mount: Path | None, what: str) -> str:
    if mount is None:
        return f"no {what} is mounted"
    return f"{mount} is read-only" if os.statvfs(mount).f_flag & os.ST_RDONLY else ""


def _cgroup2() -> str:
    return _root() or _writable(_mounted("cgroup2"), "cgroup v2")


def _cgroup1() -> str:
    return _root() or _writable(_mounted("cgroup", "devices"), "cgroup v1 devices controller")


def _bpf() -> str:
    if why := _cgroup2():
        return why
    libc = ctypes.CDLL(None, use_errno=True)
    # BPF_PROG_QUERY (16) on a bad descriptor: a kernel that knows bpf(2) for cgroups says EBADF.
    attr = ctypes.create_string_buffer(
        (0xFFFFFFFF).to_bytes(4, "little") + (6).to_bytes(4, "little"), 128
    )
    libc.syscall(321 if os.uname().machine == "x86_64" else 280, 16, attr, 128)
    return "" if ctypes.get_errno() == 9 else f"bpf(2) answers errno {ctypes.get_errno()}"


def _ip() -> str:
    return "" if shutil.which("ip") else "needs ip(8), from iproute2"


def _netns() -> str:
    return _ip() or _root() or _may_unshare("--net")


def _cc() -> str:
    return "" if shutil.which("cc") else "needs a C compiler as cc"


def _nspawn() -> str:
    missing = [tool for tool in ("systemd-nspawn", "debootstrap") if not shutil.which(tool)]
    if missing:
        return f"needs {', '.join(missing)}"
    return _root() or _may_unshare("--mount", "--pid", "--fork")


def _systemd() -> str:
    return "" if shutil.which("systemd-analyze") else "needs systemd-analyze, from systemd"


def _lstopo() -> str:
    return "" if shutil.which("lstopo-no-graphics") else "needs lstopo, from hwloc-nox"


def _umockdev() -> str:
    return "" if shutil.which("umockdev-run") else "needs umockdev-run, from umockdev"


def _chromium() -> str:
    return "" if shutil.which("chromium") else "needs chromium"


def _slurm() -> str:
    return _root() or ("" if shutil.which("slurmd") else "needs slurmd")


def _etcd() -> str:
    missing = [tool for tool in ("etcd", "etcdctl") if not shutil.which(tool)]
    return f"needs {', '.join(missing)}" if missing else ""


def _openssl() -> str:
    return "" if shutil.which("openssl") else "needs openssl"


def _podman() -> str:
    missing = [tool for tool in ("podman", "crun") if not shutil.which(tool)]
    if missing:
        return f"needs {', '.join(missing)}"
    return _root() or _cc() or _may_unshare("--mount")


def _qemu() -> str:
    tools = ("qemu-system-x86_64", "busybox", "rdma", "apt-get", "dpkg-deb")
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing or os.uname().machine != "x86_64":
        return f"needs {', '.join(missing) or 'an x86-64 host'}"
    return _root()


def _plain() -> str:
    return "" if os.geteuid() else "needs a plain user"


def _recorded() -> str:
    folder = Path(__file__).parents[2] / "shared" / "machines"
    return "" if folder.is_dir() else "needs the machines that others recorded, beside this clone"


NEEDS: dict[str, Callable[[], str]] = {
    "root": _root,
    "plain": _plain,
    "cgroup1": _cgroup1,
    "cgroup2": _cgroup2,
    "bpf": _bpf,
    "ip": _ip,
    "netns": _netns,
    "cc": _cc,
    "nspawn": _nspawn,
    "systemd": _systemd,
    "chromium": _chromium,
    "recorded": _recorded,
    "lstopo": _lstopo,
    "umockdev": _umockdev,
    "slurm": _slurm,
    "qemu": _qemu,
    "podman": _podman,
    "etcd": _etcd,
    "openssl": _openssl,
}

# The machine is shared and slow at times: a deadline for one example would fail by chance.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return Deal(config, log)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how much of the machines that others recorded was compared (tests/recorded)."""
    told = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "recorded" and report.when == "teardown"
    ]
    if told:
        machines, values = {machine for machine, _, _ in told}, sum(count for _, count, _ in told)
        terminalreporter.write_line(
            f"recorded machines: {len(machines)}, values compared: {values:,},"
            f" explained differences: {sum(explained for _, _, explained in told)}"
        )


@functools.cache
def _lacks(name: str) -> str:
    return NEEDS[name]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = os.environ.get("XCE_REQUIRE", "").split(",")
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            if why := _lacks(name):
                if name in required or ("all" in required and name != "plain"):
                    pytest.fail(f"{name} is required here, but: {why}")
                # The list of skips names the test, not this line.
                raise pytest.skip.Exception(why, _use_item_location=True)


@pytest.fixture(scope="session")
def cgroup2_mount() -> Path:
    """Where cgroup v2 is mounted."""
    mount = _mounted("cgroup2")
    if mount is None:
        pytest.skip("no cgroup v2 is mounted")
    return mount


@pytest.fixture(scope="session")
def cgroup1_mount() -> Path:
    """Where the devices controller of cgroup v1 is mounted."""
    mount = _mounted("cgroup", "devices")
    if mount is None:
        pytest.skip("no cgroup v1 devices controller is mounted")
    return mount


@pytest.fixture(scope="session")
def agents() -> ModuleType:
    """The module with `running(directory, *options)`: agents in processes of their own."""
    return wire.agent


@pytest.fixture
def agent(agents: ModuleType, tmp_path: Path) -> Iterator[str]:
    """The socket of an agent that keeps its bindings in memory."""
    with agents.running(tmp_path) as path:
        yield path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The root of a small machine of the project's own; a test may change it."""
    return write(tmp_path / "small")


@pytest.fixture
def compared(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """Tell, for the summary, how many values of a recorded machine a test compared."""
    return lambda machine, count: record_property("recorded", [machine, count, 0])


@pytest.fixture(scope="session")
def recorded() -> Iterator[Callable[[str], Path]]:
    """Make the root of a machine that others recorded, once, and give it.

    Some have ten thousand files, which a disk takes ten times as long to write as memory does.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # not a name
    with tempfile.TemporaryDirectory(prefix="xce-recorded-", dir=memory) as folder:
        made: dict[str, Path] = {}

        def root(name: str) -> Path:
            if name not in made:
                made[name] = recording.write(name, Path(folder, str(len(made))))
            return made[name]

        yield root


@pytest.fixture(scope="session")
def refused() -> type[Refused]:
    """The exception that `call` raises."""
    return Refused


@pytest.fixture
def in_job() -> Iterator[Any]:
    """Start processes in cgroups; all of them are ended."""
    started: list[InJob] = []

    def start(cgroup: str) -> InJob:
        started.append(InJob(cgroup))
        return started[-1]

    yield start
    for process in started:
        process.end()


@pytest.fixture(params=["cgroup2", "cgroup1"])
def backend(request: pytest.FixtureRequest) -> str:
    """The kind of hierarchy in which the jobs are."""
    return str(request.param)


@pytest.fixture
def mount(backend: str, request: pytest.FixtureRequest) -> Path:
    """Where that hierarchy is mounted."""
    return Path(request.getfixturevalue(f"{backend}_mount"))


@pytest.fixture
def node(tmp_path: Path):
    """A node to bind on, without a kernel, with four cards; closed at the end."""
    node = Node(tmp_path)
    yield node
    node.crash()
