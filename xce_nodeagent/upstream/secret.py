"""Secrets: read from files when they are used, so that a new one counts at once; never told."""

from __future__ import annotations

import base64
import html
import json
import os
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

from xce_nodeagent.model.name import printable
from xce_nodeagent.upstream import regular
from xce_nodeagent.upstream.sink import Undelivered

LARGEST = 16 << 10
"""Bytes of a secret that are read at most; a token of a few kilobytes is a large one."""

_KEPT = 8  # of one place: a token, or user's password and etcd's token, and those before them
_SHORTEST = 6  # of a part of a secret, or of a coded one: what is shorter is in many a word
_MOST = 400


def read(path: Path) -> str:
    """Give what stands in a file, a line of ASCII. Raise Undelivered; the secret is not in it."""
    try:
        data, found = regular.read(path, LARGEST + 1)
    except OSError as error:
        raise Undelivered(
            f"{path}: {error.strerror}",
            remedy=f"let it be a file that this process' user (uid {os.geteuid()}) may read",
            hopeless=True,
        ) from None
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o007:
        raise Undelivered(
            f"{path}: everybody can get at the secret in it (mode {mode:04o})",
            remedy="chmod o= it, and take a new secret",
            hopeless=True,
        )
    text = data.decode("ascii", "replace").strip()
    if len(data) > LARGEST or not is_line(text):
        raise Undelivered(
            f"{path}: expected one line of ASCII in it",
            remedy="write the secret there, and nothing else",
            hopeless=True,
        )
    return text


def is_line(text: str) -> bool:
    """Say whether this can be a secret: one line of printable ASCII."""
    return bool(text) and text.isprintable() and text.isascii()


class Secrets:
    """The newest secrets that went to a place. What the place says back is told without them.

    Many a server puts what it was asked into its error, and what a sink failed by is for everybody
    on the node.
    """

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=_KEPT)
        self._forms: tuple[str, ...] = ()

    def keep(self, secret: str) -> str:
        """Let this one be told no more; give it."""
        if secret and secret not in self._kept:
            self._kept.append(secret)
            found = {form for one in self._kept for form in _forms(one)}
            self._forms = tuple(sorted(found, key=len, reverse=True))
        return secret

    def said(self, text: str, most: int = _MOST) -> str:
        """Give a text, as long as it came, as people may have it: one line of so many characters.

        Cut before, it could end within a secret, which nothing would know again.
        """
        for form in self._forms:
            text = text.replace(form, "***")
        text = printable(" ".join(text.split()))
        return text if len(text) <= most else f"{text[:most]}…"


def _forms(secret: str) -> Iterator[str]:
    """Give how a secret may come back: as it is, or as a URL, JSON, HTML or base64 has it."""
    yield secret
    coded = quote(secret, safe="")
    escaped = json.dumps(secret)[1:-1]
    yield from (coded, coded.lower(), quote(secret), quote_plus(secret), html.escape(secret))
    yield escaped
    yield "".join(f"\\u{ord(char):04x}" if char in "<>&" else char for char in escaped)  # Go's
    for before in range(3):  # of a text that it stands in, with three bytes for four characters
        data = base64.b64encode(bytes(before) + secret.encode()).decode()
        # The first and the last character may have bits of what stands beside it.
        data = data[(before * 8 + 5) // 6 : (before + len(secret)) * 8 // 6]
        if len(data) >= _SHORTEST:
            yield from (data, data.translate(_URL))


_URL = str.maketrans("+/", "-_")
