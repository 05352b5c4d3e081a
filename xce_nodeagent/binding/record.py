"""The record of a binding on its cgroup: what is needed to have it again without the ledger. Pure.

It is the binding as JSON, without what changes while its plan stays the same, so that a record
can be compared by its bytes.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.plan import Plan, SetEnv
from xce_nodeagent.privileged.ops import RECORD_LIMIT

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Binding).decode


def encode(binding: Binding) -> bytes:
    """Give the record; without the environment, then without the request, where it is too long."""
    plain = structs.replace(
        binding, state="bound", reason="", changed=binding.since, left=(), leaving=()
    )
    record = _encode(plain)
    if len(record) <= RECORD_LIMIT:
        return record
    steps = tuple(step for step in plain.plan.steps if not isinstance(step, SetEnv))
    plain = structs.replace(plain, plan=Plan(steps))
    record = _encode(plain)
    if len(record) <= RECORD_LIMIT:
        return record
    return b""


def decode(record: bytes, mark: str) -> Binding:
    """Read a record; raise ValueError where it is none, or none of the binding with this mark."""
    try:
        binding = _decode(record)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    if binding.mark != mark:
        raise ValueError("it is another binding's")
    return binding
