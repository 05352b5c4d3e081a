"""A store's keys as a reader has seen them, and the fleet that they make. No I/O, and no clock.

The keys come as a list of all (`reset`) or as changes (`apply`), in any order that ends in the same
state; times are given by the caller, of a clock that nobody steps. Whatever the keys and values
are, nothing raises, and one node's rubbish changes no other.

A report may come in several transactions, and a reader may look between two of them. As long as
what a node's head says is not what is there, the node stays as it was, for `settle` seconds; only
after that it is a fault.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from types import MappingProxyType

from msgspec import structs

from xce_nodeagent.upstream import claim, packing, report
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.fleet import Fleet, Node
from xce_nodeagent.upstream.form import Form, form_of
from xce_nodeagent.upstream.keys import EntryKey, Keys, LiveKey, RivalKey, ShapeKey
from xce_nodeagent.upstream.reading import Shared, read
from xce_nodeagent.upstream.record import Record
from xce_nodeagent.upstream.shape import Shape

_log = logging.getLogger(__name__)

Change = tuple[bytes, bytes | None, int]
"""A key, its value (None: it was deleted), and its lease (0: none)."""

SETTLE = 5.0
"""Seconds that a report may take to be whole."""

MOST_RIVALS = 8
"""Other agents that claim a node's name, and are told."""

# One object for the names that each node has. Interned they would stay for ever (Python 3.12).
_COMMON = {name: name for name in (report.HEAD, report.STATIC, report.PROBLEMS)}
_LONGEST_NAME = 253  # of a host (RFC 1035)
_MOST_STRANGE = 1000  # keys of no node that are remembered
_FORMS = 16  # shapes that are kept whether a node has them or not


class Mirror:
    """The keys, and the nodes made of them; each is made anew only where it changed.

    `grace` is how many seconds a node stays available after its lease ended. One that had no lease
    when it was seen first is not available at all.
    """

    def __init__(self, keys: Keys, *, grace: float, settle: float = SETTLE) -> None:
        self._keys = keys
        self._grace = grace
        self._settle = settle
        self._records: dict[str, Record] = {}
        self._shapes: dict[str, bytes] = {}
        self._forms: dict[str, Form | str] = {}
        self._most_forms = _FORMS
        self._shared = Shared()
        self._strange: set[bytes] = set()
        self._changed: set[str] = set()
        self._waiting: dict[str, float] = {}  # nodes that time changes, and when
        self._nodes: dict[str, Node] = {}
        self._sorted = True

    # ---- what comes in ------------------------------------------------------------------------

    def reset(self, found: Iterable[tuple[bytes, bytes, int]], *, now: float, wall: float) -> None:
        """Take a list of all keys: what is not in it is gone.

        `now` is of a clock that nobody steps, `wall` the time of day, for people.
        """
        seen: dict[str, set[str]] = {}
        lives: set[str] = set()
        rivals: dict[str, set[str]] = {}
        shapes: set[str] = set()
        self._strange.clear()
        for key, value, lease in found:
            match self._take(key, value, lease, now, wall):
                case EntryKey(node, entry):
                    seen.setdefault(node, set()).add(entry)
                case LiveKey(node):
                    lives.add(node)
                case RivalKey(node, agent):
                    rivals.setdefault(node, set()).add(agent)
                case ShapeKey(sha256):
                    shapes.add(sha256)
        nothing: set[str] = set()
        for name, record in list(self._records.items()):
            for entry in record.entries.keys() - seen.get(name, nothing):
                self._entry(name, entry, None)
            if record.live is not None and name not in lives:
                self._live(name, None, 0, now, wall)
            for agent in record.rivals.keys() - rivals.get(name, nothing):
                self._rival(name, agent, None)
        for sha256 in self._shapes.keys() - shapes:
            self._shape(sha256, None)

    def apply(self, changes: Iterable[Change], *, now: float, wall: float) -> None:
        """Take changes in, in the order of the store's revisions."""
        for key, value, lease in changes:
            self._take(key, value, lease, now, wall)

    def _take(
        self, key: bytes, value: bytes | None, lease: int, now: float, wall: float
    ) -> EntryKey | LiveKey | RivalKey | ShapeKey | None:
        parsed = self._keys.parse(key)
        match parsed:
            case ShapeKey(sha256):
                self._shape(sha256, value)
                return parsed
            case EntryKey(node, entry) if _is_name(node):
                self._entry(node, entry, value)
                return parsed
            case LiveKey(node) if _is_name(node):
                self._live(node, value, lease, now, wall)
                return parsed
            case RivalKey(node, agent) if _is_name(node):
                self._rival(node, agent, value)
                return parsed
        if value is None:
            self._strange.discard(key)
        elif len(self._strange) < _MOST_STRANGE:
            self._strange.add(key)
        return None

    def _record(self, name: str, *, make: bool) -> Record | None:
        record = self._records.get(name)
        if record is None and make:
            record = self._records[name] = Record()
        return record

    def _entry(self, name: str, entry: str, value: bytes | None) -> None:
        record = self._record(name, make=value is not None)
        if record is not None and record.put(_COMMON.get(entry, entry), value):
            self._changed.add(name)

    def _live(self, name: str, value: bytes | None, lease: int, now: float, wall: float) -> None:
        record = self._record(name, make=value is not None)
        if record is None:
            return
        before, record.live = record.live, None if value is None else (value, lease)
        if record.live is not None:
            record.since, record.until = 0.0, -math.inf
        elif before is not None:
            record.since, record.until = wall, now + self._grace
        if before != record.live:
            self._changed.add(name)

    def _rival(self, name: str, agent: str, value: bytes | None) -> None:
        record = self._record(name, make=value is not None)
        if record is None or record.rivals.get(agent) == value:
            return
        if value is None:
            del record.rivals[agent]
        else:
            record.rivals[agent] = value
        self._changed.add(name)

    def _shape(self, sha256: str, value: bytes | None) -> None:
        if self._shapes.get(sha256) == value:
            return
        if value is None:
            del self._shapes[sha256]
        else:
            self._shapes[sha256] = value
        self._forms.pop(sha256, None)
        self._changed |= {n for n, node in self._nodes.items() if node.shape_hash == sha256}

    # ---- what comes out -----------------------------------------------------------------------

    def due(self) -> float:
        """Give when time alone will change a node; infinity where it will not."""
        return min(self._waiting.values(), default=math.inf)

    def fleet(self, *, revision: int, cluster: str, now: float, wall: float) -> Fleet:
        """Give the fleet as it is now. What did not change is the same object as before."""
        self._changed |= {name for name, when in self._waiting.items() if when <= now}
        for name in self._changed:
            record = self._records[name]
            self._waiting.pop(name, None)
            if record.empty:
                del self._records[name]
                self._nodes.pop(name, None)
                continue
            if (rest := record.rest(now)) > now:
                self._waiting[name] = rest
                continue
            record.last = now
            try:
                node = self._made(name, record, now, wall)
            except Exception as error:  # noqa: BLE001  # one node costs no other its news
                _log.exception("fleet: node %s can't be read", name)
                told = f"a fault of this program: {type(error).__name__}: {error}"
                node = Node(name=name, faults=(told[:200],))
            if node == record.made:  # its lease is another one, or it was put as it was
                continue
            record.made = node
            self._sorted = self._sorted and name in self._nodes
            self._nodes[name] = node
        self._changed.clear()
        if not self._sorted:
            self._nodes = dict(sorted(self._nodes.items()))
            self._sorted = True
        return Fleet(
            revision=revision,
            cluster=cluster,
            nodes=MappingProxyType(self._nodes.copy()),
            faults=self._strangers(),
        )

    def _made(self, name: str, record: Record, now: float, wall: float) -> Node:
        """Make a node, and note when it is to be made again."""
        excess = record.excess()
        whole = bool(excess) or record.whole()
        due = math.inf
        if whole:
            record.unlike = None
        elif record.unlike is None:
            record.unlike = now
        before = record.made
        if record.unlike is not None and now < record.unlike + self._settle:
            due = record.unlike + self._settle
        if due < math.inf and record.entries and before is not None and before.head is not None:
            node = before
        else:
            node = self._read(name, record, whole=whole, excess=excess)
            record.faults = node.faults
        if record.live is None and not record.since:
            record.since = wall  # it was never seen alive
        available = record.live is not None or now < record.until
        if record.live is None and available:
            due = min(due, record.until)
        if due < math.inf:
            self._waiting[name] = due
        return structs.replace(
            node,
            available=available,
            since=record.since,
            faults=tuple(sorted({*record.faults, *_claims(record, node)})),
            rivals=_rivals(name, record),
        )

    def _read(self, name: str, record: Record, *, whole: bool, excess: str) -> Node:
        if excess:
            return Node(name=name, faults=(excess,))
        record.shared = True
        node = read(name, record.entries, self._form, self._shared)
        if whole or node.faults:
            return node
        return structs.replace(node, faults=(_NOT_WHOLE,))

    def _form(self, sha256: str) -> Form | str:
        """Give a shape by its hash, read once; or say why there is none."""
        form = self._forms.get(sha256)
        if form is None:
            form = self._shape_read(sha256)
            if sha256 in self._shapes:
                self._keep(sha256, form)
        return form

    def _keep(self, sha256: str, form: Form | str) -> None:
        """Keep a shape that was read, and let go of those that no node has any more."""
        if len(self._forms) >= self._most_forms:
            used = {node.shape_hash for node in self._nodes.values()}
            self._forms = {name: one for name, one in self._forms.items() if name in used}
            self._most_forms = max(_FORMS, 2 * len(self._forms))
        self._forms[sha256] = form

    def _shape_read(self, sha256: str) -> Form | str:
        data = self._shapes.get(sha256)
        if data is None:
            return f"its shape {sha256[:16]} is not in the store"
        try:
            if (really := packing.digest(data)) != sha256:
                return f"its shape {sha256[:16]} is another: its hash is {really[:16]}"
            return form_of(packing.unpack(data, Shape))
        except packing.Unreadable as error:
            return f"its shape {sha256[:16]}: {error}"

    def _strangers(self) -> tuple[str, ...]:
        if not self._strange:
            return ()
        count = len(self._strange)
        shown = min(self._strange)[:100].decode("ascii", "backslashreplace")
        told = f"{count} or more keys" if count == _MOST_STRANGE else f"{count} keys"
        return (f"{told} below the prefix are of no node, such as {shown!r}",)


_NOT_WHOLE = "its entries are not those that its head names: something was lost, or changed"
_CLAIMS = "who has the name: "


def _claims(record: Record, node: Node) -> Iterable[str]:
    """Tell what is wrong with who lives under this name."""
    live = None
    if record.live is not None:
        value, lease = record.live
        live = claim.read(value)
        if live is None:
            yield f"{_CLAIMS}the sign of life is unreadable"
        elif live.node != node.name:
            yield f"{_CLAIMS}the sign of life is of node {live.node[:80]!r}"
        if not lease:
            yield f"{_CLAIMS}the sign of life has no lease, and so would never end"
    if live is not None and node.head is not None and live.node == node.name:
        if live.agent != node.head.agent:
            yield (
                f"{_CLAIMS}agent {live.agent[:40]}, but its report is of"
                f" agent {node.head.agent[:40]}"
            )
        elif live.boot_id != node.head.boot_id:
            yield f"{_CLAIMS}its agent, but its report is of an earlier boot"


def _rivals(name: str, record: Record) -> tuple[Live, ...]:
    """Give who else claims the name; of one whose claim is unreadable, its id alone."""
    if not record.rivals:
        return ()
    there = claim.read(record.live[0]) if record.live is not None else None
    found = []
    for agent in sorted(record.rivals)[:MOST_RIVALS]:
        told = claim.read(record.rivals[agent]) or Live(agent=agent, boot_id="", node=name)
        if there is None or not told.same(there):
            found.append(structs.replace(told, agent=agent))
    return tuple(found)


def _is_name(node: str) -> bool:
    return len(node) <= _LONGEST_NAME and node.isprintable() and "/" not in node
