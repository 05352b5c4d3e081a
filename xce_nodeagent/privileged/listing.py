"""What the kernel has of bindings: the cgroups that bear a mark, page by page.

It is by this that a lost ledger is made again. Nothing is kept that could not be looked up anew: a
binder that takes over in the middle looks again, and goes on behind the same name.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable

from xce_nodeagent.errors import AgentError, BadCgroup, exhausted
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.model.rule import Rule
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.fence import Fence
from xce_nodeagent.privileged.ops import MESSAGE_LIMIT, List, Listed, Marked
from xce_nodeagent.privileged.roots import Roots

_ROOM = MESSAGE_LIMIT - 1024
"""Bytes of a page, without what is around it."""

_FIXED, _GRANT = 1024, 64
"""Bytes that an entry takes at most beside its record, its names and its grants; and a grant."""


class Listing:
    """Lists what `known` gives and what `roots` has."""

    def __init__(
        self,
        roots: Roots,
        known: Callable[[], Iterable[CgroupRef]],
        fence: Callable[[CgroupRef], Fence],
    ) -> None:
        self._roots = roots
        self._known = known
        self._fence = fence
        self._found: list[CgroupRef] = []
        self._whole = True
        self._deep: bool | None = None

    def answer(self, request: List) -> Listed:
        """Give the page behind `after`."""
        if request.after is None or self._deep != request.deep:
            self._look(deep=request.deep)
        start = 0 if request.after is None else bisect.bisect_right(self._found, request.after)
        page: list[Marked] = []
        room = _ROOM
        for ref in self._found[start:]:
            marked = self._marked(ref)
            if marked is None:
                continue
            room -= _size(marked)
            if page and room < 0:
                return Listed(tuple(page), more=True, whole=self._whole)
            page.append(marked)
        return Listed(tuple(page), more=False, whole=self._whole)

    def _look(self, *, deep: bool) -> None:
        below, self._whole = self._roots.marked() if deep else ((), True)
        self._found = sorted({*self._known(), *below})
        self._deep = deep

    def _marked(self, ref: CgroupRef) -> Marked | None:
        try:
            cgroup = self._roots.open(ref)
        except (BadCgroup, OSError) as error:
            if exhausted(error):
                raise  # it may well be there
            return None  # gone since, or not below our roots any more
        with cgroup:
            try:
                label = cgroup.label()
                populated = cgroup.populated()
            except OSError as error:
                if exhausted(error):
                    raise
                return None  # it was removed since it was opened
            if label is None:
                return None
            return Marked(
                cgroup=ref,
                mark=label.mark,
                record=label.record,
                released=label.released,
                grants=self._granted(cgroup),
                populated=populated,
            )

    def _granted(self, cgroup: Cgroup) -> tuple[Rule, ...] | None:
        try:
            return self._fence(cgroup.ref).granted(cgroup)
        except (AgentError, OSError) as error:
            if exhausted(error) or exhausted(error.__cause__):
                raise
            return None


def _size(marked: Marked) -> int:
    names = len(marked.cgroup.path.encode()) + len(marked.mark.encode())
    return _FIXED + names + len(marked.record) + _GRANT * len(marked.grants or ())
