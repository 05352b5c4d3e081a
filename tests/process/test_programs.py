"""Where there is a reporter, the supervisor lets programs start: no helper but the runner does."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import json, os
from xce_nodeagent.daemon import helpers
from xce_nodeagent.model.config import parse
from xce_nodeagent.model.site import Site
from xce_nodeagent.privileged import seccomp

config = parse("[reporter]\\nprogram = ['/bin/true']\\n", "config.toml")
roles = helpers._roles(config, None, (), (), declarations=Site("/nowhere"), lock_path="")
seccomp.install(seccomp.SUPERVISOR - seccomp.PROGRAMS, forks=True)
found = {}
for role in roles.values():
    pid = os.fork()
    if pid == 0:
        seccomp.install(role.refused, forks=role.programs)
        try:
            os.execv("/bin/true", ["true"])
        except PermissionError:
            os._exit(77)
    found[role.name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(found))
"""


def test_no_helper_but_the_runner_starts_a_program_where_there_is_a_reporter() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(done.stdout)
    assert found.pop("runner") == 0
    assert set(found) == {"binder", "prober", "listener", "witness"}
    assert set(found.values()) == {77}
