"""The executor: carries a plan out, and takes it back, by asking the binder.

It decides nothing. Everything it asks for can be asked again.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Raw, structs

from xce_nodeagent.binding import record
from xce_nodeagent.errors import Enforcement
from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.plan import AdoptCgroup, MakeCgroup, RemoveCgroup, inverse
from xce_nodeagent.model.rule import Device, Rule
from xce_nodeagent.privileged.ops import (
    Bind,
    Done,
    HomeVerified,
    Join,
    Kill,
    Killed,
    List,
    Listed,
    Manage,
    Marked,
    Unbind,
    Unbound,
    Verified,
    Verify,
    VerifyHome,
    pack,
)

log = logging.getLogger(__name__)


KEPT = 512
"""Packed sets of grants that are kept."""


class Binder(Protocol):
    """The agent's end of the binder; `binding/helper.py` is one."""

    async def call(
        self,
        request: Any,
        fds: Sequence[int] = (),
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """Ask, and give the answer; raise the pinned error of a failure.

        `meanwhile` is called when the request is on its way.
        """
        ...


class Executor:
    """Acts on bindings through a binder. Where there is none, nothing is enforced.

    `managed` gives the devices that the binder was told to manage; `is_live` says whether a live
    binding has a mark.
    """

    def __init__(
        self,
        binder: Binder | None,
        managed: Callable[[], Collection[Device]],
        is_live: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._binder = binder
        self._is_live = is_live
        self._managed = managed
        self._packed_for: Collection[Device] = ()
        self._kept: dict[int, tuple[tuple[Rule, ...], Raw]] = {}  # held, so an id stays its own

    def _grants(self, binding: Binding) -> tuple[Rule, ...]:
        """Give the grants of what is managed now.

        A driver may have been unloaded since; then there is nothing to grant, and the binder
        takes a grant of what it does not manage for an attack.
        """
        managed = self._managed()
        return tuple(rule for rule in binding.plan.grants if rule.device in managed)

    def _packed(self, binding: Binding) -> Raw:
        """Give the grants as `Bind` carries them.

        A plan's parts are kept (composer.py), so the same object comes again and again; it is
        packed once for each set of managed devices.
        """
        grants, managed = binding.plan.grants, self._managed()
        if managed is not self._packed_for or len(self._kept) >= KEPT:
            self._kept.clear()
            self._packed_for = managed
        kept = self._kept.get(id(grants))
        if kept is None:
            kept = self._kept[id(grants)] = (grants, pack(self._grants(binding)))
        return kept[1]

    async def carry_out(
        self,
        binding: Binding,
        *,
        again: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Make the kernel's state what the binding's plan says. Raises what the binder says.

        `again`: it was carried out before, so the job's processes may be in the cgroup by now,
        also in one that its owner has made anew. Under the policy `best-effort` a rule that
        cannot be applied is logged, and that is all. `meanwhile` is called once, while the binder
        works.
        """
        step = binding.plan.cgroup
        if step is None or self._binder is None:
            if meanwhile is not None:
                meanwhile()
            return
        populated = again or (isinstance(step, AdoptCgroup) and step.populated)
        request = self._bind(binding, step, populated=populated)
        try:
            await self._binder.call(request, meanwhile=meanwhile)
        except Enforcement as error:
            if binding.enforcement != "best-effort":
                raise
            log.warning("job %s is not fenced: %s", binding.job, error.message)

    def _bind(self, binding: Binding, step: MakeCgroup | AdoptCgroup, *, populated: bool) -> Bind:
        return Bind(
            mark=binding.mark,
            cgroup=step.cgroup,
            grants=self._packed(binding),
            make=isinstance(step, MakeCgroup),
            populated=populated,
            record=record.encode(binding),
        )

    async def take_back(
        self, binding: Binding, meanwhile: Callable[[], None] = lambda: None
    ) -> Unbound:
        """Undo the binding's plan; say who is still in its cgroup.

        `meanwhile` is called once, while the binder works.
        """
        step = binding.plan.cgroup
        if step is None or self._binder is None:
            meanwhile()
            return Unbound(gone=True)
        remove = isinstance(inverse(step), RemoveCgroup)
        request = Unbind(binding.mark, step.cgroup, remove=remove)
        answer = _expect(await self._binder.call(request, meanwhile=meanwhile), Unbound)
        if answer.stray and not self._is_live(answer.stray):
            # Somebody changed the mark: what the job was given is still open to it.
            request = structs.replace(request, stray=answer.stray)
            answer = _expect(await self._binder.call(request), Unbound)
        return answer

    async def verify(self, binding: Binding) -> Verified:
        """Compare the kernel's state with the plan."""
        step = binding.plan.cgroup
        if step is None or self._binder is None:
            return Verified("ok")
        known = zlib.crc32(record.encode(binding))
        answer = await self._binder.call(
            Verify(binding.mark, step.cgroup, self._packed(binding), known)
        )
        return _expect(answer, Verified)

    async def repair(self, binding: Binding, *, deep: bool, stray: str = "") -> None:
        """Put back what differs, with the job's processes in place; see `Bind` for the rest.

        Raises what the binder says, whatever the policy.
        """
        step = binding.plan.cgroup
        if step is not None and self._binder is not None:
            request = self._bind(binding, step, populated=True)
            await self._binder.call(structs.replace(request, deep=deep, stray=stray))

    async def verify_home(self) -> HomeVerified | None:
        """Compare what all bindings share; None where nothing is enforced."""
        if self._binder is None:
            return None
        return _expect(await self._binder.call(VerifyHome()), HomeVerified)

    async def repair_home(self) -> None:
        """Put right what all bindings share."""
        if self._binder is not None:
            await self._binder.call(Manage(tuple(sorted(self._managed()))))

    @property
    def enforces(self) -> bool:
        """Whether there is a binder at all."""
        return self._binder is not None

    async def marked(self, *, deep: bool) -> tuple[list[Marked], bool]:
        """Give the cgroups that bear a mark; say whether everything was looked into.

        `deep` looks also below the roots that callers name theirs in, for what nobody knows of.
        """
        found: list[Marked] = []
        if self._binder is None:
            return found, True
        while True:
            after = found[-1].cgroup if found else None
            listed = _expect(await self._binder.call(List(after, deep)), Listed)
            found += listed.cgroups
            if not listed.more:
                return found, listed.whole

    async def kill(self, binding: Binding, signal: Literal["term", "kill"]) -> Killed:
        """Signal what is in the binding's cgroup."""
        step = binding.plan.cgroup
        if step is None or self._binder is None:
            return Killed(0, left=False)
        return _expect(await self._binder.call(Kill(binding.mark, step.cgroup, signal)), Killed)

    async def join(self, binding: Binding, pid: int, pidfd: int) -> None:
        """Move a process into the binding's cgroup."""
        step = binding.plan.cgroup
        if step is None or self._binder is None:
            return
        answer = await self._binder.call(Join(binding.mark, step.cgroup, pid), (pidfd,))
        _expect(answer, Done)


T = TypeVar("T")


def _expect(answer: Any, kind: type[T]) -> T:
    if not isinstance(answer, kind):
        raise Enforcement(f"the binder answered {type(answer).__name__}, not {kind.__name__}")
    return answer
