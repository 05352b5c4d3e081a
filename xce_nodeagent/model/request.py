"""The request language: its syntax tree, its parser, and its canonical text. Pure.

The language is LSF's: sections such as `rusage[gpu=2:nic=1]`. What is understood now:

    request := section+                     each section at most once
    section := "rusage" "[" need ((":" | ",") need)* "]"
    need    := TYPE "=" COUNT               each type at most once
    TYPE    := [a-z][a-z0-9_-]*             gpu, mig, mps, nic, or a type of the site's own
    COUNT   := a whole number, 0 to 10000

Space is allowed between any two tokens. The other sections of LSF are known by name, so that who
writes one is told that it is not understood, rather than that it is a mistake.
"""

from __future__ import annotations

import re
from typing import NoReturn

from msgspec import Struct

from xce_nodeagent.errors import BadRequest

LENGTH_LIMIT = 4096
COUNT_LIMIT = 10_000
UNDERSTOOD = ("rusage",)
KNOWN_SECTIONS = frozenset({"select", "order", "span", "same", "cu", "affinity"})
_SHOWN = 36  # characters of the text on each side of a fault

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)|(?P<name>[a-z][a-z0-9_-]*)|(?P<number>[0-9]+)|(?P<mark>[\[\]=:,])"
)


class Need(Struct, frozen=True):
    """How many instances of a type."""

    type: str
    count: int


class Rusage(Struct, frozen=True, tag="rusage"):
    """`rusage[...]`: what the job uses, in the order written."""

    needs: tuple[Need, ...]


Section = Rusage


class Request(Struct, frozen=True):
    """A request: its sections, in the order written."""

    sections: tuple[Section, ...]

    def counts(self) -> dict[str, int]:
        """Give how many instances of each type are needed; types with 0 are left out."""
        needs = [need for section in self.sections for need in section.needs]
        return {need.type: need.count for need in needs if need.count}


def parse(text: str) -> Request:
    """Read a request; raise BadRequest with the place of the fault."""
    if len(text) > LENGTH_LIMIT:
        raise BadRequest(
            f"request: {len(text)} characters; expected at most {LENGTH_LIMIT}", limit=LENGTH_LIMIT
        )
    return _Parser(text).request()


def render(request: Request) -> str:
    """Write a request in its canonical form; `parse` reads it back to the same value."""
    return " ".join(
        f"rusage[{':'.join(f'{need.type}={need.count}' for need in section.needs)}]"
        for section in request.sections
    )


class _Token(Struct, frozen=True):
    kind: str  # name, number, mark, other, or end
    text: str
    at: int


class _Parser:
    """Recursive descent: one method for each rule, one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._token = self._next()

    def request(self) -> Request:
        sections: list[Section] = []
        seen: set[str] = set()
        while self._token.kind != "end" or not sections:
            word = self._take("name", "a section, such as rusage[gpu=2]")
            if word.text in seen:
                self._fail(word, f"{word.text}[] is given twice")
            seen.add(word.text)
            sections.append(self._section(word))
        return Request(tuple(sections))

    def _section(self, word: _Token) -> Section:
        if word.text != "rusage":
            known = "is not understood yet" if word.text in KNOWN_SECTIONS else "is no section"
            understood = ", ".join(f"{name}[]" for name in UNDERSTOOD)
            self._fail(word, f"{word.text}[] {known}; understood now: {understood}")
        return self._rusage()

    def _rusage(self) -> Rusage:
        self._take("[", "'[' after rusage")
        needs: list[Need] = []
        seen: set[str] = set()
        while True:
            word = self._take("name", "a resource type, such as gpu")
            if word.text in seen:
                self._fail(word, f"{word.text} is given twice")
            seen.add(word.text)
            self._take("=", f"'=' and a count after {word.text}")
            needs.append(Need(word.text, self._count()))
            if self._token.text not in (":", ","):
                break
            self._token = self._next()
        self._take("]", "':' and another need, or ']'")
        return Rusage(tuple(needs))

    def _count(self) -> int:
        token = self._take("number", f"a whole number from 0 to {COUNT_LIMIT}")
        # Measured by its length first: int() of thousands of digits is slow, or refused.
        if len(token.text.lstrip("0")) > len(str(COUNT_LIMIT)) or int(token.text) > COUNT_LIMIT:
            self._fail(token, f"expected a whole number from 0 to {COUNT_LIMIT}")
        return int(token.text)

    def _take(self, wanted: str, expected: str) -> _Token:
        token = self._token
        if wanted not in (token.kind, token.text if token.kind == "mark" else ""):
            self._fail(token, f"expected {expected}")
        self._token = self._next()
        return token

    def _next(self) -> _Token:
        while True:
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                kind = "end" if self._at == len(self._text) else "other"
                return _Token(kind, self._text[self._at : self._at + 1], self._at)
            at, self._at = self._at, match.end()
            kind = match.lastgroup or ""
            if kind != "space":
                return _Token(kind, match[0], at)

    def _fail(self, token: _Token, why: str) -> NoReturn:
        """Raise BadRequest with the text around the fault, and a caret below it."""
        first = max(0, token.at - _SHOWN)
        last = min(len(self._text), token.at + _SHOWN)
        around = "".join(c if c.isprintable() else " " for c in self._text[first:last])
        left, right = "…" if first else "", "…" if last < len(self._text) else ""
        caret = " " * (len(left) + token.at - first) + "^"
        raise BadRequest(
            f"request: {why} (character {token.at + 1})\n  {left}{around}{right}\n  {caret}",
            position=token.at,
        )
