"""A whole systemd in a container: booted in seconds from a cached image, thrown away afterwards.

The image is the distribution's own, of the release that runs here, so that its Python is the one
that the virtual environment was made from. It is made once (two minutes), kept in
/var/cache/xce-nodeagent, and never written to: a container's changes are in memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CACHE = Path("/var/cache/xce-nodeagent")
PACKAGES = ("dbus", "iproute2", "python3", "systemd", "systemd-sysv")
OPT = Path("/opt/xce-nodeagent")


def _unavailable(why: str) -> None:
    """Skip what needs the container; where nspawn is required, fail."""
    if "nspawn" in os.environ.get("XCE_REQUIRE", "").split(","):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> Path:
    """Give the folder of the image, and make it when it is not there yet."""
    release = subprocess.run(
        ["sh", "-c", '. /etc/os-release; printf %s "$VERSION_CODENAME"'],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
    folder = CACHE / f"{release}-{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once make one image
        if not folder.exists():
            _make_image(folder, release, request)
    return folder


def _make_image(folder: Path, release: str, request: pytest.FixtureRequest) -> None:
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\nmaking the container's image in {folder} (once; one or two minutes)", flush=True)  # noqa: T201  # said at once, not when the test has failed
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, partial],
        check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    if made.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        _unavailable(f"debootstrap could not make the image: {made.stdout[-600:]}")
    for deb in (partial / "var/cache/apt/archives").glob("*.deb"):
        deb.unlink()
    partial.rename(folder)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give an environment with the project really installed, as an admin would in /opt.

    The locked dependencies are those of the environment that runs the tests; they are mounted
    beside it.
    """
    interpreter = Path(sys.executable).resolve()
    if interpreter.parent != Path("/usr/bin"):
        _unavailable(f"the environment is made from {interpreter}, which no container has")
    work = tmp_path_factory.mktemp("installed")
    source = work / "source"
    shutil.copytree(
        REPOSITORY / "xce_nodeagent", source / "xce_nodeagent",
        ignore=shutil.ignore_patterns("__pycache__"),
    )  # fmt: skip
    for name in ("pyproject.toml", "README.md"):
        if (REPOSITORY / name).exists():
            shutil.copy(REPOSITORY / name, source)
    environment = work / "environment"
    subprocess.run(
        [interpreter, "-m", "venv", "--without-pip", environment], check=True, timeout=60
    )
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check",
            "install", "--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed",
            "--prefix", environment, source,
        ],
        check=True, timeout=100,
    )  # fmt: skip
    packages = next((environment / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(f"{OPT}-dependencies\n")
    program = environment / "bin/xce-nodeagent"
    first, _, rest = program.read_text().partition("\n")
    assert first.startswith("#!")
    program.write_text(f"#!{OPT}/bin/python\n{rest}")
    shutil.copytree(REPOSITORY / "systemd", environment / "systemd")
    shutil.copytree(REPOSITORY / "hooks", environment / "hooks")
    return environment


class Machine:
    """A booted container."""

    def __init__(self, process: subprocess.Popen[bytes], leader: int) -> None:
        self.process = process
        self.leader = leader

    def run(
        self, *command: str, user: int = 0, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, and give its output; `user` is a uid, without groups."""
        drop = (f"--reuid={user}", f"--regid={user}", "--clear-groups") if user else ()
        done = subprocess.run(
            ["nsenter", "-t", str(self.leader), "-a", "--", "setpriv", *drop, *command],
            check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout, env={"PATH": "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin"},
        )  # fmt: skip
        if check and done.returncode:
            pytest.fail(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def put(self, file: Path, name: str) -> None:
        """Copy a program into the container."""
        with file.open("rb") as source:
            subprocess.run(
                ["nsenter", "-t", str(self.leader), "-a", "--", "sh", "-c", f'cat >"{name}"'],
                check=True, stdin=source, timeout=60,
            )  # fmt: skip
        self.run("chmod", "755", name)

    def show(self, unit: str, name: str) -> str:
        """Give one property of a unit."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def journal(self, unit: str) -> str:
        """Give what a unit has logged."""
        return self.run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", unit).stdout

    def wait(self, what: str, true: Callable[[], bool], seconds: float = 30) -> None:
        """Wait until something is true."""
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {seconds:.0f} s: {what}")
            time.sleep(0.05)


def _cgroups(name: str) -> list[Path]:
    """Make a cgroup of our own wherever nspawn makes some: in v2, and in systemd's own v1."""
    made = []
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options):
            folder = Path(where) / name
            folder.mkdir()
            made.append(folder)
    return made


def _remove(cgroup: Path) -> None:
    deadline = time.monotonic() + 10
    for folder, _, _ in os.walk(cgroup, topdown=False):
        while True:
            try:
                os.rmdir(folder)
                break
            except OSError:  # a killed process is still on its way out
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def _leader(nspawn: int) -> int:
    """Give the pid of the container's first process once it is systemd; 0 before."""
    try:
        children = Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text().split()
        for child in children:
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
    except OSError:
        pass
    return 0


def _boot(process: subprocess.Popen[bytes], log: Path) -> Machine:
    deadline = time.monotonic() + 60
    state = ""
    while time.monotonic() < deadline and process.poll() is None:
        if leader := _leader(process.pid):
            machine = Machine(process, leader)
            state = machine.run("systemctl", "is-system-running", check=False).stdout.strip()
            if state in {"running", "degraded"}:
                return machine
        time.sleep(0.1)
    pytest.fail(f"the container did not boot ({state or 'no systemd'}): {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def machine(
    image: Path, installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machine]:
    """Boot a container with the project in /opt, for one module's tests."""
    name = f"xce-test-{os.getpid()}-{time.monotonic_ns() % 10**9}"
    log = tmp_path_factory.mktemp("nspawn") / "console"
    cgroups = _cgroups(name)
    enter = 'for c; do [ "$c" = -- ] && break; echo $$ >"$c/cgroup.procs"; shift; done; shift; '
    try:
        with log.open("wb") as console:
            process = subprocess.Popen(
                [
                    "sh", "-ec", f'{enter} exec "$@"', "sh", *map(str, cgroups), "--",
                    "systemd-nspawn", "--quiet", "-D", str(image), "--volatile=overlay", "--boot",
                    "--register=no", "--keep-unit", "-M", name, "--console=read-only",
                    "--private-network", "--capability=all", "--system-call-filter=bpf",
                    "--link-journal=no", "--resolv-conf=off", "--timezone=off",
                    f"--bind-ro={installed}:{OPT}",
                    f"--bind-ro={sysconfig.get_path('purelib')}:{OPT}-dependencies",
                ],
                stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            )  # fmt: skip
        with process:
            try:
                yield _boot(process, log)
            finally:
                process.send_signal(signal.SIGTERM)  # nspawn asks systemd to power off
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()  # and its container with it
    finally:
        for cgroup in cgroups:
            _remove(cgroup)
