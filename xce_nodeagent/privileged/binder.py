"""The binder: carries out what the agent asks, after checking it by its own knowledge.

Paths are checked by `roots.py`, device numbers by `majors.py`, and nothing can be granted that is
not managed. Every operation can be repeated. The order in which a cgroup is bound fails closed at
every point where the power may go:

    make it → mark it → attach the fence, which closes every managed device → write the grants

It keeps no state of its own but what it read: all of it is in the kernel, on the cgroups.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from xce_nodeagent.errors import AgentError, BadCgroup, Conflict, Enforcement, NotReady, exhausted
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.plan import Backend, CgroupRef
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import fence2, kill, majors, pidfd, simnode
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.fence import Fence
from xce_nodeagent.privileged.fences import Fences
from xce_nodeagent.privileged.grants import Grants
from xce_nodeagent.privileged.label import Label, check_bindable, check_mark, check_record
from xce_nodeagent.privileged.listing import Listing
from xce_nodeagent.privileged.ops import (
    Bind,
    BinderAnswer,
    BinderRequest,
    Done,
    Failed,
    HomeVerified,
    Join,
    Kill,
    List,
    Listed,
    Manage,
    Take,
    Taken,
    Unbind,
    Unbound,
    Verified,
    Verify,
    VerifyHome,
)
from xce_nodeagent.privileged.roots import Roots, Where
from xce_nodeagent.privileged.unbinding import nothing_there, unbind

BOUND_LIMIT = 16_384
"""Cgroups that are bound at once: many times what a host can run, few enough to go over."""


class Binder:
    """Answers the binder's requests. It acts on nothing before `Take`.

    `home` is where it makes cgroups (made by it if missing), `roots` are those below which callers
    may name theirs, `own` the cgroups of the agent, which are never bound, `owners` the uids that
    may have the folders above a job's cgroup, beside root: who may prepare. `take_lock` makes sure
    that no other binder lives. `declared` gives the devices that root's own files declare for jobs,
    as they are when it is asked. `simulated` are the nodes of a simulated machine below
    `device_directory`. `kills`: it may end processes in bound cgroups. `shared=False` goes
    without the shared program.
    """

    def __init__(
        self,
        *,
        home: CgroupRef | None,
        roots: Sequence[CgroupRef] = (),
        take_lock: Callable[[], object] = lambda: None,
        own: Sequence[CgroupRef] = (),
        owners: Collection[int] = (),
        simulated: Sequence[DeviceNode] = (),
        device_directory: str = "/dev/xce-sim",
        proc: Path = Path("/proc"),
        kills: bool = False,
        declared: Callable[[], Collection[Device]] = frozenset,
        shared: bool = True,
    ) -> None:
        self._home = home
        self._kills = kills
        self._declared = declared
        self._take_lock = take_lock
        self._lock: object = None  # held as long as the binder lives
        self._simulated = tuple(simulated)
        self._directory = device_directory
        self._proc = proc
        self._roots = Roots(home=home, roots=roots, own=own, owners=owners, proc=proc)
        self._taken: Taken | None = None
        self._agent = 0
        self._fences = Fences(proc=proc, shared=shared)
        self._made: frozenset[Device] = frozenset()
        self._managed: frozenset[Device] | None = None
        self._known = Grants()
        # Cgroups that may be bound, for `Manage`: an ordered set.
        self._bound: dict[CgroupRef, None] = {}
        self._listing = Listing(self._roots, lambda: self._bound, self._fence)

    def handle(self, request: BinderRequest, fds: Sequence[int] = ()) -> BinderAnswer:
        """Carry out one request; the descriptors stay the caller's.

        What cannot be done is answered with `Failed`. Raises Violation for what nobody honest asks.
        """
        try:
            if self._taken is None and not isinstance(request, Take):
                raise NotReady(
                    "this binder has not been told to take over: send Take first"
                )  # one place
            match request:
                case Take():
                    return self._take(request)
                case Manage():
                    return self._manage(request)
                case Bind():
                    return self._bind(request)
                case Unbind():
                    return self._unbind(request)
                case Verify():
                    return self._verify(request)
                case VerifyHome():
                    return self._verify_home()
                case Join():
                    return self._join(request, fds)
                case List():
                    return self._list(request)
                case Kill():
                    allowed, roots, proc = self._kills, self._roots, self._proc
                    return kill.answer(request, roots, proc, agent=self._agent, allowed=allowed)
        except AgentError as error:
            if exhausted(error.__cause__):
                raise
            return Failed(error.code, error.message, error.details)
        except OSError as error:
            if exhausted(error):
                raise  # it is done again, by another binder
            # What the kernel may always say: no memory, no space, too many open files.
            what = f"{type(request).__name__}: {error.filename or 'the kernel'}: {error.strerror}"
            return Failed(Enforcement.code, what, {"errno": error.errno})

    def close(self, *, tidy: bool = True) -> None:
        """Let go of everything. What is enforced stays.

        When nothing is bound any more, the anchor, a home that a binder made, and the simulated
        nodes go too; with `tidy=False` they stay, as if the binder had been killed.
        """
        with contextlib.suppress(AgentError, OSError):
            if tidy and self._taken is not None and not self._anything_bound():
                self._tidy()
        self._fences.close()
        self._taken = None
        self._roots.close()

    # ---- Take -------------------------------------------------------------------------------

    def _take(self, request: Take) -> Taken:
        if self._taken is not None:
            return self._taken
        if self._lock is None:
            self._lock = self._take_lock()
        self._agent = request.agent
        self._roots.make_home()
        if self._simulated:
            self._made = simnode.make(self._directory, self._simulated, proc=self._proc)
        # What of these is not bound, or not below our roots, is passed over when it is opened.
        self._bound = dict.fromkeys(request.known)
        try:
            with self._home2() as home:
                self._fences.open(home, self._open_bound)
            self._managed = self._fences.managed
            self._find_bound()
        except BaseException:
            self._fences.close()
            raise
        self._taken = Taken(
            pid=os.getpid(),
            home=self._home,
            backends=self._fences.backends,
            program=self._fences.program,
            recovered=self._fences.recovered,
            reason=self._fences.reason,
        )
        return self._taken

    def _home2(self) -> contextlib.AbstractContextManager[Cgroup | None]:
        """Open the home where it is on cgroup v2, which has an anchor; else give None."""
        in_v2 = self._home is not None and self._home.backend == "cgroup2"
        return (self._roots.home() if in_v2 else None) or contextlib.nullcontext()

    def _find_bound(self) -> None:
        """Add what is bound below the home, whatever the ledger says."""
        home = self._roots.home()
        if home is None:
            return
        with home:
            for child in home.children():
                if child.mark() is not None:
                    self._bound[child.ref] = None

    def _open_bound(self, backend: Backend) -> Iterator[Cgroup]:
        """Open each cgroup that is bound, in turn; forget those that are not any more."""
        for ref in [ref for ref in self._bound if ref.backend == backend]:
            try:
                cgroup = self._roots.open(ref)
            except (BadCgroup, OSError) as error:
                if exhausted(error):
                    raise  # it may well be bound
                del self._bound[ref]
                continue
            with cgroup:
                if cgroup.mark() is None:
                    del self._bound[ref]
                else:
                    yield cgroup

    def _fence(self, cgroup: CgroupRef) -> Fence:
        return self._fences.of(cgroup)

    # ---- Manage -----------------------------------------------------------------------------

    def _manage(self, request: Manage) -> Done:
        devices = frozenset(request.devices)
        new = devices - (self._managed or frozenset())
        majors.check(new, made=self._made, proc=self._proc, declared=self._declared)
        with self._home2() as home:
            self._fences.manage(devices, self._open_bound, home)
        self._managed = devices
        self._known.forget()
        return Done()

    # ---- Bind and Unbind --------------------------------------------------------------------

    def _bind(self, request: Bind) -> Done:
        fence = self._fence(request.cgroup)
        if self._managed is None:
            raise NotReady("this binder does not know which devices are managed: send Manage first")
        grants = self._known.unpack(bytes(request.grants), self._managed)
        check_mark(request.mark)
        check_record(request.record)
        if len(self._bound) >= BOUND_LIMIT and request.cgroup not in self._bound:
            raise Enforcement(
                f"{len(self._bound)} cgroups are bound, more than this binder keeps: release some",
                cgroup=request.cgroup.path,
            )
        where: Where = "home" if request.make else "roots"
        made = False
        if request.make:
            cgroup, made = self._roots.make(request.cgroup)
        else:
            cgroup = self._open(request.cgroup, where)
        with cgroup:
            label = None if made else cgroup.label()
            if label is not None and label.mark != request.stray:
                check_bindable(label, request)
            elif label is None and not made:
                if not request.make:
                    self._roots.check_owners(cgroup)
                self._roots.check_free(cgroup, populated=request.populated)
            try:
                if label is None:
                    fence.remember(cgroup, made=made)
                if label is None or (label.mark, label.record) != (request.mark, request.record):
                    # Before the grants: a ledger that is made again from it can only give more.
                    cgroup.set_label(Label(request.mark, request.record))
                # Where only the mark was lost, nothing is closed for a moment.
                if label is None and not made and fence.verify(cgroup, grants).state == "differs":
                    fence.forget(cgroup)
                fence.bind(cgroup, grants, made=made)
                if request.deep:
                    fence.spread(cgroup, grants)
            except BaseException:
                # Nothing is to be left of what failed. The fence of one that existed stays closed.
                if label is None:
                    cgroup.drop_mark()
                if made:
                    cgroup.remove()
                raise
        self._bound[request.cgroup] = None
        return Done()

    def _unbind(self, request: Unbind) -> Unbound:
        check_mark(request.mark)
        try:
            fence = self._fence(request.cgroup)
        except Enforcement:
            if not nothing_there(request, self._roots):
                raise
            unbound = Unbound(gone=True)
        else:
            unbound = unbind(request, self._roots, fence)
        if not unbound.populated and not unbound.stray:
            self._bound.pop(request.cgroup, None)
        return unbound

    def _open(self, ref: CgroupRef, where: Where) -> Cgroup:
        try:
            return self._roots.open(ref, where)
        except FileNotFoundError:
            raise BadCgroup(
                f"cgroup {ref.path} does not exist: make it before prepare", cgroup=ref.path
            ) from None

    # ---- Verify and Join --------------------------------------------------------------------

    def _verify(self, request: Verify) -> Verified:
        fence = self._fence(request.cgroup)
        if self._managed is None:
            raise NotReady("this binder does not know which devices are managed: send Manage first")
        grants = self._known.unpack(bytes(request.grants), self._managed)
        check_mark(request.mark)
        try:
            with self._roots.open(request.cgroup) as cgroup:
                label = cgroup.label()
                if label is not None and label.mark != request.mark:
                    return Verified("stray", label.mark)
                if label is not None and label.released:
                    return Verified("released", "its grants were taken back")
                verified = fence.verify(cgroup, grants)
                if label is None:
                    more = f", and {verified.fault}" if verified.state == "differs" else ""
                    return Verified("differs", f"its mark is gone{more}", verified.masks)
                known = request.record in (None, zlib.crc32(label.record))
                if not known and verified.state != "differs":
                    return Verified("differs", "its record is not the ledger's", verified.masks)
                return verified
        except FileNotFoundError:
            found = self._roots.find(request.cgroup, request.mark)
            if found is None:
                return Verified("gone", "the cgroup does not exist")
            found.close()
            return Verified("differs", f"the cgroup was renamed to {found.ref.path}")

    def _verify_home(self) -> HomeVerified:
        with self._home2() as home:
            gone = self._home is not None and self._home.backend == "cgroup2" and home is None
            fault = self._fences.verify_home(home)
        if gone:
            fault = "; ".join(filter(None, (f"the jobs' home {self._home} was removed", fault)))
        return HomeVerified(fault, time.process_time())

    def _join(self, request: Join, fds: Sequence[int]) -> Done:
        self._fence(request.cgroup)
        check_mark(request.mark)
        if len(fds) != 1:
            raise Violation(f"a Join with {len(fds)} descriptors, where a pidfd is due")
        pidfd.check(fds[0], request.pid, self._proc, agent=self._agent)
        with self._open(request.cgroup, "any") as cgroup:
            if cgroup.mark() != request.mark:
                raise Conflict(
                    f"cgroup {request.cgroup.path} is not bound to this job", cgroup=cgroup.ref.path
                )
            pidfd.check_free(request, self._roots, self._proc)
            pidfd.enter(cgroup, fds[0], request.pid)
        return Done()

    def _list(self, request: List) -> Listed:
        self._find_bound()
        listed = self._listing.answer(request)
        # What is found below the allowed roots is fenced like all others when devices come.
        self._bound.update(dict.fromkeys(marked.cgroup for marked in listed.cgroups))
        return listed

    # ---- the end ----------------------------------------------------------------------------

    def _anything_bound(self) -> bool:
        self._find_bound()
        return any(True for backend in self._fences.backends for _ in self._open_bound(backend))

    def _tidy(self) -> None:
        home = self._roots.home()
        if home is not None:
            with home:
                if home.ref.backend == "cgroup2":
                    fence2.drop_anchor(home)
                if home.made_as_home():
                    home.remove()
        if self._made:
            simnode.remove(self._directory)
