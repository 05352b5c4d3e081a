"""Names: those that a caller gives, what is made from them, and those that strangers chose."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from xce_nodeagent.errors import BadJobId, BadPort, BadRequest

NAME_LIMIT = 128  # bytes of a job id or attempt
_NAME = re.compile(r"[!-~]{1,128}")  # printable ASCII without space
_FORBIDDEN = frozenset("/\\\"'`")
_PORT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_GENERATION = re.compile(r"([0-9a-f-]{1,64}):([0-9]{1,18})")


def job_id(text: str) -> str:
    """Check a job id. LSF's `12[3]` and PBS's `12[].server` fit; raise BadJobId otherwise."""
    return _checked("job id", text)


def attempt(text: str) -> str:
    """Check an attempt token; the empty one means that the caller gives up its protection."""
    return _checked("attempt", text) if text else text


def run(job: str, attempt: str) -> str:
    """Name a run of a job in a message."""
    return f"job {job!r} attempt {attempt!r}" if attempt else f"job {job!r} (no attempt)"


def printable(text: str) -> str:
    """Give a name that a stranger chose so that a terminal shows it and does not obey it."""
    return "".join(char if char.isprintable() else "?" for char in text)


def cleaned(value: Any) -> Any:
    """Give an answer as a terminal may be shown it: every text in it `printable`."""
    if isinstance(value, str):
        return value if value.isprintable() else printable(value)
    if isinstance(value, dict):
        return {cleaned(key): cleaned(one) for key, one in value.items()}
    if isinstance(value, tuple):  # msgspec.to_builtins leaves them
        return tuple(cleaned(one) for one in value)
    return [cleaned(one) for one in value] if isinstance(value, list) else value


_LETTERS = frozenset(string.ascii_uppercase + string.digits + "_")
_CONTROL = frozenset(map(chr, (*range(32), *range(127, 160)))) - {"\t"}
_OBEYED = ("ENV", "HOME", "IFS", "SHELL", "SHELLOPTS", "PROMPT_COMMAND", "EDITOR", "VISUAL",
           "PAGER", "TMPDIR")  # fmt: skip
_OBEYED_BEGINS = ("LD_", "DYLD_", "BASH", "PS", "PYTHON", "PERL", "RUBY", "LUA_", "NODE_", "JAVA_",
                  "_JAVA", "JDK_", "GCONV_", "GLIBC_", "MALLOC_", "GIT_", "SSH_", "LESS",
                  "OPENSSL_")  # fmt: skip
_OBEYED_ENDS = ("PATH", "_PRELOAD", "_OPTIONS", "_OPTS", "_PLUGIN", "_LIBRARY")


def environment(variables: Mapping[str, Any]) -> bool:
    """Say whether these variables can be given to a shell, a program or a terminal, each a line.

    Who asks may be root, whose shell evaluates the answer: a captured agent must give it no name
    that is a command, and nothing by which the loader, a shell or an interpreter takes code
    (LD_PRELOAD, BASH_ENV, PATH). hooks/prepare has the same lists.
    """
    return all(
        isinstance(text, str) and not _CONTROL & set(text) and _harmless(name)
        for name, text in variables.items()
    )


def _harmless(name: str) -> bool:
    if not set(name) <= _LETTERS or not name or name[0].isdigit():
        return False
    return name.startswith("XCE_") or not (
        name in _OBEYED or name.startswith(_OBEYED_BEGINS) or name.endswith(_OBEYED_ENDS)
    )


def _checked(what: str, text: str) -> str:
    if not _NAME.fullmatch(text) or _FORBIDDEN & set(text):
        shown = text if len(text) <= 40 else f"{text[:40]}… ({len(text)} characters)"
        raise BadJobId(
            f"{what} {shown!r}: expected 1 to {NAME_LIMIT} printable ASCII characters"
            " without space, slash, backslash and quotes",
            **{what.replace(" ", "_"): shown},
        )
    return text


def port_name(text: str) -> str:
    """Check a port's name, which becomes XCE_PORT_<NAME>; raise BadPort otherwise."""
    if not _PORT_NAME.fullmatch(text):
        raise BadPort(
            f"port name {text[:40]!r}: expected a letter, then up to 31 letters, digits or _",
            name=text[:40],
        )
    return text


def generation(text: str) -> tuple[str, int]:
    """Read `BOOT_ID:N`; raise BadRequest otherwise."""
    match = _GENERATION.fullmatch(text)
    if not match:
        raise BadRequest(
            f"generation {text[:80]!r}: expected BOOT_ID:N, as `inventory` shows it",
            generation=text[:80],
        )
    return match[1], int(match[2])


def cgroup_name(job: str) -> str:
    """Give the name of a job's own cgroup: `job-` and the id, escaped.

    Letters, digits, `.`, `_` and `-` stay; every other byte becomes `=XX`, as in quoted-printable,
    so two ids never share a name. A job id has at most 128 bytes, so at most 388 characters
    would come out; beyond NAME_MAX (255) the id is cut and told apart by its own hash.
    """
    escaped = "".join(c if c.isalnum() or c in "._-" else f"={ord(c):02X}" for c in job)
    if len(escaped) <= 200:  # room below NAME_MAX for the prefix and a hash
        return f"job-{escaped}"
    from hashlib import sha256  # noqa: PLC0415  # one job id in a million needs it

    return f"job-{escaped[:180]}={sha256(job.encode()).hexdigest()[:32]}"
