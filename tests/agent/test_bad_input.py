"""Bad input gets its pinned error, changes nothing, and leaves the agent serving the others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.needs("root", "cgroup2", "bpf"), pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("ask", "code", "error_class"),
    [
        ({"job": "1", "instances": ["GPU-nobody"]}, "unknown_instance", "node"),
        ({"job": "a/b"}, "bad_job_id", "caller"),
        ({"job": "a\nb"}, "bad_job_id", "caller"),
        ({"job": "x" * 10_000}, "bad_job_id", "caller"),
        ({"job": ""}, "bad_job_id", "caller"),
        ({}, "bad_request", "caller"),
        ({"job": 7}, "bad_request", "caller"),
        ({"job": "1", "colour": "red"}, "bad_request", "caller"),
        ({"job": "1", "request": "rusage[gpu=two]"}, "bad_request", "caller"),
        ({"job": "1", "request": "rusage[gpu=9]"}, "never_fits", "job"),
        ({"job": "1", "ports": [{"port": 80}]}, "bad_port", "caller"),
        ({"job": "1", "ports": [{"count": 100_000}]}, "bad_port", "caller"),
        ({"job": "1", "cgroup": "/etc"}, "bad_cgroup", "caller"),
        ({"job": "1", "cgroup": "@root"}, "bad_cgroup", "caller"),
        ({"job": "1", "cgroup": "@other"}, "bad_cgroup", "caller"),
        ({"job": "1", "cgroup": "@missing"}, "bad_cgroup", "caller"),
        ({"job": "1", "cgroup": "@link"}, "bad_cgroup", "caller"),
        ({"job": "1", "cgroup": "@populated"}, "bad_cgroup", "caller"),
        ({"job": "1", "cgroup": "@bound"}, "conflict", "caller"),
        ({"job": "1", "cgroup": "@nested"}, "bad_cgroup", "caller"),
        ({"job": "1", "pid": 1}, "bad_cgroup", "caller"),
        ({"job": "1", "pid": 4_000_000}, "bad_cgroup", "caller"),
        ({"job": "1", "pid": 999_999_999}, "bad_request", "caller"),
        ({"job": "1", "uid": -1}, "bad_request", "caller"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
def test_bad_input(steady, special, refused, *, ask, code, error_class):
    """Each gets its pinned error, changes nothing, and the agent goes on."""
    if ask.get("cgroup") in special:
        ask = {**ask, "cgroup": special[ask["cgroup"]]}
    with pytest.raises(refused, match=r"io\.xce\.NodeAgent") as caught:
        steady.call("Prepare", **ask)
    assert (caught.value.code, caught.value.error_class) == (code, error_class)
    assert [b["job"] for b in steady.call("ListBindings")["bindings"]] == ["holder"]
    assert [p.name for p in steady.home.iterdir() if p.is_dir()] == []


@pytest.fixture(scope="module")
def special(steady, cgroup2_mount):
    """Cgroups that may not be named."""
    bound, populated = steady.other / "bound", steady.other / "populated"
    (bound / "nested").mkdir(parents=True)
    populated.mkdir()
    steady.call("Prepare", job="holder", cgroup=str(bound))
    link = steady.folder / "link"
    link.symlink_to(steady.other)
    inside = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (populated / "cgroup.procs").write_text(str(inside.pid), "ascii")
        yield {
            "@root": str(cgroup2_mount),
            "@other": str(steady.other),
            "@missing": str(steady.other / "missing"),
            "@link": str(link),
            "@populated": str(populated),
            "@bound": str(bound),
            "@nested": str(bound / "nested"),
        }
    finally:
        inside.kill()
        inside.communicate()
