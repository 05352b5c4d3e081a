"""Whose a cgroup is: the label that it bears, and what may be written there."""

from __future__ import annotations

from typing import NamedTuple

from xce_nodeagent.errors import Conflict
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.ops import RECORD_LIMIT, Bind

MARK_LIMIT = 4096
"""Bytes of a mark: a job id and an attempt of 128 bytes each, and room for more."""

_BOUND, _RELEASED = b"\n bound\n", b"\n released\n"
"""What is between a mark and a record: no job id and no attempt has a space in it."""


class Label(NamedTuple):
    """Whose a cgroup is, whether that binding was released, and its record."""

    mark: str
    record: bytes
    released: bool = False

    @classmethod
    def read(cls, value: bytes) -> Label:
        """Read it. An earlier version wrote the mark only, which is the job and the attempt."""
        # The first of them: a record may hold anything.
        places = {value.find(between): between for between in (_BOUND, _RELEASED)}
        place = min((place for place in places if place >= 0), default=-1)
        if place < 0:
            return cls(value.decode("utf-8", "replace"), b"")
        between = places[place]
        record = value[place + len(between) :]
        return cls(value[:place].decode("utf-8", "replace"), record, between == _RELEASED)

    def value(self) -> bytes:
        """Give it as it is stored: in one value, so that it changes at once."""
        return self.mark.encode() + (_RELEASED if self.released else _BOUND) + self.record


def check_mark(mark: str) -> None:
    """Raise Violation for what is no mark."""
    text = mark.encode()
    if not 0 < len(text) <= MARK_LIMIT or _BOUND in text or _RELEASED in text:
        raise Violation(f"a mark of {len(mark)} characters, or one that reads as more than a mark")


def check_record(record: bytes) -> None:
    """Raise Violation for what is no record."""
    if len(record) > RECORD_LIMIT:
        raise Violation(f"a record of {len(record)} bytes")


def check_bindable(label: Label, request: Bind) -> None:
    """Raise Conflict where a cgroup is another binding's, or was this one's and is released."""
    path = request.cgroup.path
    if label.mark != request.mark:
        raise Conflict(f"cgroup {path} is bound already: release that first", cgroup=path)
    if label.released:
        raise Conflict(
            f"cgroup {path}: this binding was released, and waits for its processes to end: end"
            " them, then prepare again",
            cgroup=path,
        )
