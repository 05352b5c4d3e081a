"""A vendor's library in a real prober: what it says is seen, and when it hangs nobody waits."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

STUB = Path(__file__).parents[1] / "machines" / "nvml" / "nvml_stub.c"
CARD = "gpu bus=00000000:1B:00.0 uuid=GPU-one name=NVIDIA_H100 minor=3 memory=85520809984 cc=9.0"

pytestmark = [
    pytest.mark.needs("root", "cgroup2", "bpf", "cc"),
    pytest.mark.parametrize("backend", ["cgroup2"], indirect=True),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The stand-in, compiled, in a folder that other users can read."""
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", STUB], check=True)
    return folder / "libnvidia-ml.so.1"


def with_library(agent, library, text):
    agent.stop()
    own = agent.folder / "lib"
    own.mkdir()
    (own / library.name).write_bytes(library.read_bytes())
    (own / "data").write_text(text, "ascii")
    for path in (own, *own.iterdir()):
        path.chmod(0o755)
    agent.env |= {"LD_LIBRARY_PATH": str(own), "XCE_NVML_DATA": str(own / "data")}
    begun = time.monotonic()
    agent.start()
    return time.monotonic() - begun


def test_what_the_library_says_is_in_the_inventory(agent, library):
    with_library(agent, library, f"driver 550.54.15\n{CARD} mig=0\n")
    found = {i["id"]: i for i in agent.call("GetInventory")["instances"]}
    assert found["GPU-one"]["provider"] == "nvidia"
    assert found["GPU-one"]["attributes"]["driver_version"] == "550.54.15"
    # Its driver is not really loaded, so no fence can be made for it; the others are served.
    if "nvidia" not in Path("/proc/devices").read_text("utf-8"):
        assert not found["GPU-one"]["healthy"]
        reason = found["GPU-one"]["reason"]
        assert "cannot be fenced" in reason or "is not there" in reason
    assert agent.call("Prepare", job="1", request="rusage[gpu=2]")["enforcement"] == "cgroup2"


def test_a_library_that_hangs_delays_neither_the_start_nor_a_prepare(agent, library):
    took = with_library(agent, library, f"driver 550.54.15\n{CARD} mig=0 hang=uuid\n")
    assert took < 15  # the library would take for ever, and the prober's own patience is a minute
    begun = time.monotonic()
    assert agent.call("Prepare", job="1", request="rusage[gpu=2]")["enforcement"] == "cgroup2"
    assert time.monotonic() - begun < 2
    problems = {p["provider"]: p for p in agent.call("GetInventory")["problems"]}
    assert "has not answered yet" in problems["nvidia"]["reason"]
