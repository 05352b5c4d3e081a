"""A process may have any name, and a terminal must not obey it."""

import subprocess
import sys

from xce_nodeagent.host.process import name_and_owner
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.witness import Witness

NAMED = r"""
open("/proc/self/comm", "w").write("\x1b[2J\u202eab\nc")
held = open("/dev/ptmx")
print("named", flush=True)
input()
"""


def test_what_a_terminal_would_obey_is_replaced():
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline() == b"named\n"
            name, _ = name_and_owner(process.pid)
            looked = Witness().handle(ops.Look(devices=(Device("c", 5, 2),)), ())
        finally:
            process.kill()
    (seen,) = {seen.comm for seen in looked.seen if seen.pid == process.pid}
    for shown in (name, seen):
        assert shown.isprintable()
        assert shown.startswith("?[2J")
        assert "ab" in shown
