"""The interface description, the messages and the table of methods say the same."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

import xce_nodeagent
from xce_nodeagent.daemon.message import error_name
from xce_nodeagent.daemon.method import METHODS
from xce_nodeagent.errors import BY_CODE
from xce_nodeagent.model import instance, inventory, wire

TEXT = (Path(xce_nodeagent.__file__).parent / "io.xce.NodeAgent.varlink").read_text("utf-8")

# What each method takes and answers, in our types. Nothing where it has no field.
REPLIES: dict[str, type[msgspec.Struct]] = {
    "Prepare": wire.Prepared,
    "Release": wire.Released,
    "Join": wire.Joined,
    "Reconcile": wire.Reconciled,
    "GetInventory": inventory.Inventory,
    "ListBindings": wire.Bindings,
    "GetBinding": wire.OneBinding,
    "Drain": wire.Nothing,
    "Undrain": wire.Nothing,
    "Doctor": wire.Checks,
}
TYPES = {
    kind.__name__: kind
    for kind in (
        wire.PortAsk, wire.PortHeld, wire.LeftOver, wire.JobRef, wire.BindingView, wire.Check,
        instance.DeviceNode, instance.Holder, instance.Instance, instance.Attribute,
        instance.ResourceType, inventory.ControlNode, inventory.Problem,
    )
}  # fmt: skip


class Description:
    """A reader of Varlink's interface language, by its grammar (varlink.org/Interface-Definition).

    Structs are dicts of field name → type text, in order; a type is kept as it is written.
    """

    def __init__(self, text: str) -> None:
        self._tokens = list(self._tokenise(text))
        self.interface = ""
        self.types: dict[str, dict[str, str]] = {}
        self.methods: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        self.errors: dict[str, dict[str, str]] = {}
        self._read()

    @staticmethod
    def _tokenise(text: str) -> Iterator[str]:
        for line in text.splitlines():
            code = line.partition("#")[0]
            left = re.sub(r"->|\?|\[string\]|\[\]|[(),:]|[A-Za-z][A-Za-z0-9._-]*|\s+", "", code)
            assert not left, f"no token of the language: {left!r} in {line!r}"
            yield from re.findall(r"->|\?|\[string\]|\[\]|[(),:]|[A-Za-z][A-Za-z0-9._-]*", code)

    def _take(self, expected: str = r".+") -> str:
        token = self._tokens.pop(0)
        assert re.fullmatch(expected, token), f"expected {expected}, found {token!r}"
        return token

    def _read(self) -> None:
        self._take("interface")
        # interface_name of the grammar
        self.interface = self._take(r"[A-Za-z]([-]*[A-Za-z0-9])*(\.[A-Za-z0-9]([-]*[A-Za-z0-9])*)+")
        while self._tokens:
            kind = self._take("type|method|error")
            name = self._take(r"[A-Z][A-Za-z0-9]*")
            assert name not in self.types | self.methods | self.errors, f"{name} stands twice"
            if kind == "type":
                self.types[name] = self._struct()
            elif kind == "error":
                self.errors[name] = self._struct()
            else:
                asks = self._struct()
                self._take("->")
                self.methods[name] = (asks, self._struct())

    def _struct(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        self._take(r"\(")
        while self._tokens[0] != ")":
            if fields:
                self._take(",")
            name = self._take(r"[A-Za-z](_?[A-Za-z0-9])*")
            assert name not in fields, f"field {name} stands twice"
            self._take(":")
            fields[name] = self._type()
        self._take(r"\)")
        return fields

    def _type(self) -> str:
        written = ""
        while self._tokens[0] in ("?", "[]", "[string]"):
            written += self._take()
        assert "??" not in written
        return written + self._take(r"bool|int|float|string|object|[A-Z][A-Za-z0-9]*")


DESCRIPTION = Description(TEXT)


def varlink(annotation: object) -> str:
    """Write a type of ours in Varlink's language."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return varlink(arguments[0])
    if origin is typing.Literal:
        return varlink(type(arguments[0]))
    if origin in (types.UnionType, typing.Union):
        inner = [item for item in arguments if item is not type(None)]
        assert len(inner) == 1
        assert len(arguments) == 2
        return "?" + varlink(inner[0])
    if origin is tuple:
        assert arguments[1:] == (...,)
        return "[]" + varlink(arguments[0])
    if origin is dict:
        assert arguments[0] is str
        # Values of several types have no name in the language: the whole is an object.
        plain = not isinstance(arguments[1], types.UnionType) and arguments[1] is not typing.Any
        return "[string]" + varlink(arguments[1]) if plain else "object"
    names = {str: "string", int: "int", bool: "bool", float: "float"}
    if annotation in names:
        return names[annotation]
    assert isinstance(annotation, type)
    assert issubclass(annotation, msgspec.Struct)
    assert TYPES[annotation.__name__] is annotation
    return annotation.__name__


def fields(kind: type[msgspec.Struct]) -> dict[str, str]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.encode_name: varlink(hints[field.name]) for field in structs.fields(kind)}


def test_it_names_the_interface() -> None:
    assert DESCRIPTION.interface == wire.INTERFACE == "io.xce.NodeAgent"


def test_its_methods_are_the_table_and_no_others() -> None:
    assert {f"{wire.INTERFACE}.{name}" for name in DESCRIPTION.methods} == set(METHODS)
    assert set(DESCRIPTION.methods) == set(REPLIES)


@pytest.mark.parametrize("name", sorted(REPLIES))
def test_a_method_takes_and_answers_what_the_messages_have(name: str) -> None:
    asks, answers = DESCRIPTION.methods[name]
    assert asks == fields(METHODS[f"{wire.INTERFACE}.{name}"].ask.type)
    assert answers == fields(REPLIES[name])


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_type_has_the_fields_of_ours(name: str) -> None:
    assert DESCRIPTION.types[name] == fields(TYPES[name])


def test_every_type_is_used_and_there_are_no_others() -> None:
    assert set(DESCRIPTION.types) == set(TYPES)
    written = [*DESCRIPTION.types.values(), *(s for m in DESCRIPTION.methods.values() for s in m)]
    used = {re.sub(r"\?|\[\]|\[string\]", "", t) for struct in written for t in struct.values()}
    assert set(TYPES) <= used


@pytest.mark.parametrize("name", list(DESCRIPTION.methods))
def test_a_field_that_may_be_left_out_of_a_call_is_optional_and_no_other(name: str) -> None:
    for field in structs.fields(METHODS[f"{wire.INTERFACE}.{name}"].ask.type):
        optional = DESCRIPTION.methods[name][0][field.encode_name].startswith("?")
        assert optional == (not field.required), field.name


def test_its_errors_are_the_pinned_ones() -> None:
    expected = {error_name(error).rpartition(".")[2] for error in BY_CODE.values()}
    assert set(DESCRIPTION.errors) == expected
    for struct in DESCRIPTION.errors.values():
        assert struct == {
            "code": "string", "class": "string", "message": "string", "details": "object",
        }  # fmt: skip


def test_the_comment_before_an_error_says_its_class() -> None:
    for error in BY_CODE.values():
        name = error_name(error).rpartition(".")[2]
        assert re.search(rf"# {error.error_class}: [^\n]*\nerror {name} ", TEXT), name


def test_every_method_and_type_has_a_comment_before_it() -> None:
    lines = TEXT.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"(type|method|error) ", line):
            assert lines[number - 1].startswith("#"), line
