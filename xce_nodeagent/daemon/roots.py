"""The configured roots of cgroups, against what is mounted: agent and supervisor both look."""

from __future__ import annotations

from collections.abc import Sequence

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.host.cgroup import Mount
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.plan import CgroupRef


def on(path: str, mounted: Sequence[Mount]) -> CgroupRef | None:
    """Say in which kind of hierarchy a path is, whether it is there or not; None when in none."""
    below = [mount for mount in mounted if path.startswith(mount.point.rstrip("/") + "/")]
    if not below:
        return None
    # Of nested mounts (hybrid hosts mount v2 below a tmpfs) the innermost is meant.
    return CgroupRef(max(below, key=lambda mount: len(mount.point)).backend, path)


def check(config: Config, mounted: Sequence[Mount], name: str) -> None:
    """Raise BadConfig with every root that no cgroup can be below; `name` is the file's.

    A root that is only missing is no fault: it may be a unit's that starts later. Nor is anything
    where nothing is enforced.
    """
    if config.agent.enforcement == "off":
        return
    named = [("cgroup_root", path) for path in [config.agent.cgroup_root] if path]
    named += [("cgroup_allowed_roots", path) for path in config.agent.cgroup_allowed_roots]
    there = ", ".join(mount.point for mount in mounted) or "none is mounted"
    faults = [
        f"{name}: [agent] {key}: {path!r}: expected a path below a cgroup hierarchy that can fence"
        f" devices ({there})"
        for key, path in named
        if on(path, mounted) is None
    ]
    if faults:
        raise BadConfig("\n".join(faults), faults=faults)
