"""The place of a job: which cgroup it gets, and which it may not have."""

from __future__ import annotations

from xce_nodeagent.binding.book import Book
from xce_nodeagent.binding.composer import Site
from xce_nodeagent.binding.demand import Demand
from xce_nodeagent.errors import BadCgroup, Busy, Conflict, Enforcement
from xce_nodeagent.host import cgroup as host_cgroup
from xce_nodeagent.model import name
from xce_nodeagent.model.plan import AdoptCgroup, CgroupRef, MakeCgroup


def named(
    want: Demand, pid: int | None, site: Site, mounted: dict[str, str], *, held: bool
) -> CgroupRef | None:
    """Look up the cgroup that the caller named, by its path or by a process in it; None if none.

    Raise BadCgroup where it may not be named or cannot be used. `held`: the job has it already,
    and its processes may be in it.
    """
    if (pid is None and not want.ask.cgroup) or site.policy == "off":
        return None
    if pid is not None:
        cgroup = host_cgroup.of_process(pid, mounted)
        below_roots(site, cgroup.path)
    else:
        # Whether it may be named comes before whether it exists: other paths stay unknown.
        below_roots(site, want.ask.cgroup)
        cgroup = host_cgroup.at(want.ask.cgroup)
    if not held and not want.adopt and host_cgroup.populated(cgroup):
        raise BadCgroup(
            f"cgroup {cgroup.path} has processes in it, which may have opened devices already:"
            " bind it before its first process, or say --adopt",
            cgroup=cgroup.path,
        )
    return cgroup


def choose(
    book: Book, want: Demand, site: Site, cgroup: CgroupRef | None
) -> tuple[MakeCgroup | AdoptCgroup | None, str]:
    """Give the step that names the job's cgroup, and what the answer says of enforcement.

    `cgroup` is what the caller named, looked up; None lets the job have one of its own.
    """
    if site.policy == "off":
        return None, "off"
    if cgroup is None:
        if site.home is None:
            if site.policy == "required":
                raise Enforcement(
                    "there is no cgroup hierarchy on this host in which a job can be fenced:"
                    " `xce-nodeagent doctor` says why; `[agent] enforcement` is 'required'"
                )
            return None, site.policy
        own = CgroupRef(site.home.backend, f"{site.home.path}/{name.cgroup_name(want.job)}")
        _unbound(book, want, own)
        step: MakeCgroup | AdoptCgroup = MakeCgroup(own)
    else:
        below_roots(site, cgroup.path)
        _unbound(book, want, cgroup)
        step, own = AdoptCgroup(cgroup, want.adopt), cgroup
    return step, own.backend if site.policy == "required" else site.policy


def _unbound(book: Book, want: Demand, cgroup: CgroupRef) -> None:
    found = book.bound_cgroup(cgroup.path)
    if found is None:
        return
    path, (job, attempt) = found
    who = name.run(job, attempt)
    if job == want.job and book.live[job, attempt].state in ("releasing", "quarantined"):
        raise Busy(
            f"cgroup {path} still has what {who} left over: wait until it is clean",
            holders=[{"job": job, "attempt": attempt}],
        )
    if job == want.job:
        raise Conflict(
            f"{who} is still bound: release it first",
            job=job,
            attempt=attempt,
        )
    if path == cgroup.path:
        raise Conflict(
            f"cgroup {path} is bound to {who}: release that first",
            cgroup=path,
            job=job,
            attempt=attempt,
        )
    raise BadCgroup(
        f"cgroup {cgroup.path} is {'below' if cgroup.path.startswith(path) else 'above'} {path},"
        f" which is bound to {who}: bindings do not nest; name another cgroup",
        cgroup=cgroup.path,
        bound=path,
    )


def below_roots(site: Site, path: str) -> None:
    """Raise BadCgroup unless a cgroup lies below a root that the configuration allows.

    Its path goes into the job's environment, and on terminals.
    """
    if not path.isprintable():
        raise BadCgroup(
            f"cgroup {path[:200]!r}: expected a path of printable characters", cgroup=path[:200]
        )
    for root in site.roots:
        if path.startswith(f"{root}/"):
            return
    allowed = ", ".join(site.roots) or "none is configured"
    raise BadCgroup(
        f"cgroup {path} is not below an allowed root ({allowed}):"
        " set `[agent] cgroup_allowed_roots`",
        cgroup=path,
    )
