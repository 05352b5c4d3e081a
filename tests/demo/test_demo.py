"""The demo as a person runs it, from the outside: its exit status and its last word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_every_claim_of_the_demo_holds():
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("demo.py")],
        check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "claims held" in done.stdout.splitlines()[-1]
    assert done.stderr == ""
