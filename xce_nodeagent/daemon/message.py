"""Messages of the socket as bytes: calls in, answers out (varlink.org/Method-Call)."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from xce_nodeagent.errors import AgentError, BadRequest
from xce_nodeagent.model import wire

SERVICE: Final = "org.varlink.service"
"""The interface that every Varlink service has."""


class Call(wire.Call, frozen=True):
    """A call whose parameters are still bytes."""

    parameters: msgspec.Raw = msgspec.Raw(b"{}")


_encode: Final = msgspec.json.Encoder(enc_hook=str).encode
_calls: Final = msgspec.json.Decoder(Call)


def call(message: bytes) -> Call:
    """Read a call; raise BadRequest."""
    return decoded(_calls, message, "message")  # type: ignore[no-any-return]  # the decoder's type


def parameters(of: Call) -> bytes | memoryview:
    """Give a call's parameters as JSON; `null` and none at all are the same."""
    raw = memoryview(of.parameters)
    return b"{}" if bytes(raw[:5]) == b"null" else raw


def decoded(decoder: msgspec.json.Decoder[Any], data: bytes | memoryview, what: str) -> Any:
    """Decode; raise BadRequest, which names the field in `details`."""
    try:
        return decoder.decode(data)
    except RecursionError:
        raise BadRequest(f"{what}: nested too deeply", field="") from None
    except (msgspec.MsgspecError, ValueError) as error:
        found = re.search(r"at `\$\.?(.*)`|field `(.*?)`", str(error))
        field = (found[1] or found[2] or "") if found else ""
        raise BadRequest(
            f"{what}: {error}; {wire.INTERFACE}.varlink describes what is expected", field=field
        ) from None


def success(result: Any, *, continues: bool = False) -> bytes:
    """Write an answer. None is an answer without parameters."""
    reply: dict[str, Any] = {"parameters": {} if result is None else result}
    if continues:
        reply["continues"] = True
    return _encode(reply) + b"\0"


def failure(error: AgentError) -> bytes:
    """Write an error of ours."""
    facts = {
        "code": error.code,
        "class": error.error_class,
        "message": error.message,
        "details": error.details,
    }
    return _encode({"error": error_name(error), "parameters": facts}) + b"\0"


def protocol_error(name: str, **facts: str) -> bytes:
    """Write an error of the protocol's own. What a client sent is given back shortened."""
    short = {key: value[:255] for key, value in facts.items()}
    return _encode({"error": f"{SERVICE}.{name}", "parameters": short}) + b"\0"


def error_name(error: AgentError | type[AgentError]) -> str:
    """Give an error's name on the wire: its code in CamelCase, in our interface."""
    return f"{wire.INTERFACE}." + "".join(word.capitalize() for word in error.code.split("_"))
