"""The closed table of methods: what each takes, who may call it, and what answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib import resources
from typing import Any, Final

import msgspec
from msgspec import Struct

from xce_nodeagent.daemon.connection import Peer
from xce_nodeagent.daemon.message import SERVICE, Call, parameters, protocol_error, success
from xce_nodeagent.daemon.service import Service
from xce_nodeagent.model import wire

_Answers = Callable[[Service, Peer, Any], Coroutine[Any, Any, Any]]


class Method(Struct, frozen=True):
    """A row of the table. `needs_prepare`: only for who may prepare."""

    ask: msgspec.json.Decoder[Any]
    needs_prepare: bool
    call: _Answers


def _everybody(ask: type[Struct], call: _Answers) -> Method:
    return Method(msgspec.json.Decoder(ask), needs_prepare=False, call=call)


def _preparers(ask: type[Struct], call: _Answers) -> Method:
    return Method(msgspec.json.Decoder(ask), needs_prepare=True, call=call)


METHODS: Final = {
    f"{wire.INTERFACE}.{name}": method
    for name, method in {
        "Prepare": _preparers(wire.Prepare, lambda s, p, a: s.prepare(p, a)),
        "Release": _preparers(wire.Release, lambda s, p, a: s.release(p, a)),
        "Join": _everybody(wire.Join, lambda s, p, a: s.join(p, a)),
        "Reconcile": _preparers(wire.Reconcile, lambda s, p, a: s.reconcile(p, a)),
        "GetInventory": _everybody(wire.Nothing, lambda s, p, _: s.get_inventory(p)),
        "ListBindings": _everybody(wire.Nothing, lambda s, p, _: s.list_bindings(p)),
        "GetBinding": _everybody(wire.JobRef, lambda s, p, a: s.get_binding(p, a)),
        "Drain": _preparers(wire.Drain, lambda s, p, a: s.drain(p, a)),
        "Undrain": _preparers(wire.Undrain, lambda s, p, a: s.undrain(p, a)),
        "Doctor": _everybody(wire.Doctor, lambda s, p, a: s.doctor(p, a)),
    }.items()
}
"""Every method of `io.xce.NodeAgent`. Join and Doctor check for themselves who may."""

STREAMED: Final = f"{wire.INTERFACE}.GetInventory"
"""The one method that goes on answering, with `more`."""


class _Wanted(Struct, frozen=True):
    interface: str


_wanted: Final = msgspec.json.Decoder(_Wanted)


class Introspection:
    """What the service says about itself (varlink.org/Service)."""

    def __init__(self, version: str) -> None:
        self._info = {
            "vendor": "XCE",
            "product": "xce-nodeagent",
            "version": version,
            "url": "",
            "interfaces": [wire.INTERFACE, SERVICE],
        }
        ours = resources.files("xce_nodeagent").joinpath(f"{wire.INTERFACE}.varlink")
        self._descriptions = {wire.INTERFACE: ours.read_text("utf-8"), SERVICE: _OF_SERVICE}

    def answer(self, call: Call) -> bytes:
        """Answer a call of `org.varlink.service`, or say that there is no such method."""
        interface, _, name = call.method.rpartition(".")
        if interface not in self._descriptions:
            return protocol_error("InterfaceNotFound", interface=interface)
        if call.upgrade and call.method in METHODS:
            return protocol_error("MethodNotImplemented", method=call.method)
        if interface == SERVICE and name == "GetInfo":
            return success(self._info)
        if interface == SERVICE and name == "GetInterfaceDescription":
            try:
                wanted = _wanted.decode(parameters(call)).interface
            except (msgspec.MsgspecError, ValueError, RecursionError):
                return protocol_error("InvalidParameter", parameter="interface")
            if wanted not in self._descriptions:
                return protocol_error("InterfaceNotFound", interface=wanted)
            return success({"description": self._descriptions[wanted]})
        return protocol_error("MethodNotFound", method=call.method)


_OF_SERVICE: Final = """\
# What every Varlink service answers about itself.
interface org.varlink.service

# Who this is, and which interfaces it has.
method GetInfo() -> (
  vendor: string,
  product: string,
  version: string,
  url: string,
  interfaces: []string
)

# The description of an interface, in Varlink's own language.
method GetInterfaceDescription(interface: string) -> (description: string)

# There is no such interface here.
error InterfaceNotFound (interface: string)

# The interface has no such method.
error MethodNotFound (method: string)

# The method is described, but this service does not have it in the way that was asked for.
error MethodNotImplemented (method: string)

# A parameter is not what the description says.
error InvalidParameter (parameter: string)

# The caller may not do this.
error PermissionDenied ()

# The method answers only calls with `more`.
error ExpectedMore ()
"""
