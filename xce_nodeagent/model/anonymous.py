"""A record of a machine without what tells whose it is.

Replaced are hardware addresses, GUIDs, UUIDs, serial numbers and asset tags, IP addresses, the
host's name, and names of interfaces that an admin chose. The same original becomes the same
replacement everywhere, in whatever spelling, and replacements sort as their originals do: the
machine that is looked at is the same but for these. Models, firmware, places on PCI and numbers of
device nodes stay, because they are what a fault is about.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address
from itertools import count
from typing import Any

from xce_nodeagent.model.original import (
    HOLDERS,
    PATTERN,
    ROUTE,
    ROUTES,
    TABLE,
    Originals,
    address,
    dotted,
    originals,
    plain,
)
from xce_nodeagent.model.record import Entry, File, Link, Record

_SHORTEST = 4  # letters of a name that is replaced wherever it stands
_BEGINNINGS = {12: "02", 16: "02", 32: "00000000000040008000", 40: "80"}
"""Of replacements by their digits: locally administered (IEEE 802), and a UUID (RFC 9562)."""


def anonymous(record: Record) -> Record:
    """Give the record with every original replaced, in names, links and texts alike."""
    replacing = _Replacing(originals(record), {part for path in record for part in _fixed(path)})
    return {replacing.path(path): replacing.entry(path, entry) for path, entry in record.items()}


def _fixed(path: str) -> Iterator[str]:
    """Give the parts of a path that are no interface's name."""
    parts = path.split("/")
    return (
        part for before, part in zip(["", *parts], parts, strict=False) if before not in HOLDERS
    )


class _Replacing:
    """What becomes of each original. `fixed` are words of the kernel, which stay as they are."""

    def __init__(self, found: Originals, fixed: set[str]) -> None:
        self._digits = dict(_numbered(found.digits))
        self._addresses: dict[Any, str] = {
            **dict(zip(_sorted(found.addresses, 4), _ipv4(), strict=False)),
            **dict(zip(_sorted(found.addresses, 6), _ipv6(), strict=False)),
        }
        # A host may be called `gpu`, and an interface `data`: then only where it is told as one.
        self._names = {
            **{one: f"host{n or ''}.invalid" if "." in one else f"host{n or ''}"
               for n, one in enumerate(found.hosts)},
            **{one: f"if{n}" for n, one in enumerate(sorted(found.interfaces))},
        }  # fmt: skip
        words = {digits: new for digits, new in self._digits.items() if len(digits) < 32}
        for number in found.numbers:
            if new := self._digits.get(f"{number:016x}"):
                words[str(number)] = str(int(new, 16))
                words[f"{number:x}"] = new.lstrip("0")
        words.update(zip(sorted(found.serials), (f"S{n:07}" for n in count(1)), strict=False))
        words.update(
            (name, new)
            for name, new in self._names.items()
            if len(name) >= _SHORTEST and name not in fixed
        )
        self._words = {word.lower(): new for word, new in words.items()}
        longest = sorted(self._words, key=lambda word: (-len(word), word))
        # udev makes names of addresses: enx0002c9a1b2c3.
        self._word = re.compile(
            rf"(?:(?<![0-9A-Za-z])|(?<=\b0x)|(?<=\b(?:en|ib|wl|ww)x))"
            rf"(?:{'|'.join(map(re.escape, longest))})(?![0-9A-Za-z])",
            re.IGNORECASE,
        )

    def entry(self, path: str, entry: Entry) -> Entry:
        if isinstance(entry, Link):
            # Only from the root on it is seen which parts are names of interfaces.
            folder = posixpath.dirname(path)
            target = posixpath.normpath(posixpath.join(folder, entry.target))
            return Link(posixpath.relpath(self.path(target), self.path(folder)))
        return File(self._text(path, entry.text)) if isinstance(entry, File) else entry

    def path(self, path: str) -> str:
        parts = path.split("/")
        return "/".join(
            self._name(part, before in HOLDERS)
            for before, part in zip(["", *parts], parts, strict=False)
        )

    def _name(self, name: str, interface: bool) -> str:
        if name.startswith(("lower_", "upper_")):
            return name[:6] + self._name(name[6:], interface=True)
        if interface and name in self._names:
            return self._names[name]
        return self._replaced(name)

    def _text(self, path: str, text: str) -> str:
        """Give a file's text. It may be a name as a whole, or have it as a value or a word."""
        if ROUTES.fullmatch(path):
            text = ROUTE.sub(lambda m: m[1] + self._number(m[2]) + m[3] + self._number(m[4]), text)
        if TABLE.fullmatch(path):
            text = re.sub(r"\S+", lambda match: self._names.get(match[0], match[0]), text)
        if (name := text.strip()) in self._names:
            return text.replace(name, self._names[name])
        text = re.sub(
            r'((?:^INTERFACE=|^IBDEV=|"))([^"\n]+)("|$)',
            lambda match: match[1] + self._names.get(match[2], match[2]) + match[3],
            text,
            flags=re.MULTILINE,
        )
        return self._replaced(text)

    def _replaced(self, text: str) -> str:
        if self._words:
            text = self._word.sub(lambda match: self._words[match[0].lower()], text)
        return PATTERN.sub(self._pattern, text)

    def _number(self, word: str) -> str:
        """Give the replacement of an IPv4 address in the spelling of /proc/net/route."""
        for one in address(dotted(word)):
            return IPv4Address(self._addresses[one]).packed[::-1].hex().upper()
        return word

    def _pattern(self, match: re.Match[str]) -> str:
        if match["ipv4"] or match["ipv6"]:
            return next((self._addresses[one] for one in address(match[0])), match[0])
        new = self._digits.get(plain(match[0]))
        if new is None:
            return match[0]
        digits = iter(new)
        return "".join(char if char in ":-" else next(digits) for char in match[0])


def _numbered(originals: Iterable[str]) -> Iterator[tuple[str, str]]:
    numbers: dict[int, int] = {}
    for one in sorted(originals):
        length = len(one)
        numbers[length] = numbers.get(length, 0) + 1
        beginning = _BEGINNINGS.get(length, "02")
        yield one, beginning + f"{numbers[length]:0{length - len(beginning)}x}"


def _sorted(addresses: Iterable[Any], version: int) -> list[Any]:
    return sorted(one for one in addresses if one.version == version)


def _ipv4() -> Iterator[str]:
    """Give addresses that are nobody's (RFC 2544)."""
    return (f"198.{18 + (n >> 16 & 1)}.{n >> 8 & 255}.{n & 255}" for n in count(1))


def _ipv6() -> Iterator[str]:
    """Give addresses that are nobody's (RFC 3849)."""
    return (f"2001:db8::{n:x}" for n in count(1))
