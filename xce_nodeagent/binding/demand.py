"""A demand: a Prepare whose every field has been checked on its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct, structs

from xce_nodeagent.errors import BadCgroup, BadPort, BadRequest
from xce_nodeagent.model import name, wire
from xce_nodeagent.model.binding import Ask

PORTS_LIMIT = 4096
INSTANCES_LIMIT = 1024
REQUEST_LIMIT = 4096


class Demand(Struct, frozen=True, kw_only=True):
    """A Prepare whose every field has been checked on its own."""

    job: str
    attempt: str
    ask: Ask
    add: bool = False
    adopt: bool = False
    number: int | None = None
    """The N of the generation that the caller worked from."""

    def in_cgroup(self, path: str) -> Demand:
        """Give the demand with the cgroup that it comes to, where a process was named for it."""
        return structs.replace(self, ask=structs.replace(self.ask, cgroup=path))


def demand(ask: wire.Prepare) -> Demand:
    """Check a Prepare, field by field; raise BadJobId, BadRequest, BadPort or BadCgroup."""
    job = name.job_id(ask.job)
    attempt = name.attempt(ask.attempt or "")
    instances = ask.instances or ()
    if len(instances) > INSTANCES_LIMIT:
        raise BadRequest(f"instances: expected at most {INSTANCES_LIMIT}, got {len(instances)}")
    for one, next_one in pairwise(sorted(instances)):
        if one == next_one:
            raise BadRequest(f"instance {one[:100]} is named twice", instance=one[:100])
    request = ask.request or ""
    if len(request) > REQUEST_LIMIT:
        raise BadRequest(f"request: expected at most {REQUEST_LIMIT} characters")
    if ask.cgroup is not None and ask.pid is not None:
        raise BadRequest("cgroup and pid: expected one of them; --pid takes the process's cgroup")
    return Demand(
        job=job,
        attempt=attempt,
        ask=Ask(
            uid=ask.uid,
            instances=tuple(sorted(instances)),
            request=request,
            ports=_ports(ask.ports or ()),
            cgroup=_cgroup(ask.cgroup) if ask.cgroup is not None else "",
        ),
        add=bool(ask.add),
        adopt=bool(ask.adopt),
        number=name.generation(ask.generation)[1] if ask.generation is not None else None,
    )


def _ports(asks: Sequence[wire.PortAsk]) -> tuple[wire.PortAsk, ...]:
    total = 0
    named: set[str] = set()
    values: set[int] = set()
    for ask in asks:
        if (ask.count is None) == (ask.port is None):
            raise BadPort("ports: each needs either a count or a port, and not both")
        if ask.count is not None and not 1 <= ask.count <= PORTS_LIMIT:
            raise BadPort(f"{ask.count} ports: expected 1 to {PORTS_LIMIT}", count=ask.count)
        if ask.port is not None and not 1 <= ask.port <= 65_535:
            raise BadPort(f"port {ask.port}: expected 1 to 65535", port=ask.port)
        if ask.port is not None and ask.port in values:
            raise BadPort(f"port {ask.port} is asked for twice", port=ask.port)
        if ask.name is not None:
            upper = name.port_name(ask.name).upper()
            if upper in named:
                raise BadPort(f"port name {ask.name!r} is given twice", name=ask.name)
            named.add(upper)
        values |= {ask.port} if ask.port is not None else set()
        total += ask.count or 1
    if total > PORTS_LIMIT:
        raise BadPort(f"{total} ports: expected at most {PORTS_LIMIT} in all", count=total)
    return tuple(asks)


def _cgroup(path: str) -> str:
    if not path.startswith("/") or "\0" in path or "\n" in path or len(path) > 4000:
        raise BadCgroup(f"cgroup {path[:80]!r}: expected an absolute path", cgroup=path[:80])
    parts = path.rstrip("/").split("/")[1:]
    if any(part in ("", ".", "..") for part in parts):
        raise BadCgroup(
            f"cgroup {path[:200]!r}: expected a path without '.', '..' and '//'", cgroup=path[:200]
        )
    return "/" + "/".join(parts)
