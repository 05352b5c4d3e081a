"""What doctor says of the ledger: can it be written, was it ever lost, and has its disk space."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from xce_nodeagent.binding.ledger import LOG_BYTES, Ledger
from xce_nodeagent.binding.rebuilt import Rebuilt
from xce_nodeagent.binding.reserve import BYTES as RESERVE_BYTES
from xce_nodeagent.model.wire import Check

TOLD_SECONDS = 7 * 86_400
"""How long people are told of a ledger that was lost."""


async def checks(book: Ledger, now: float, *, enforced: bool) -> list[Check]:
    """Look at all of it; see `ledger` and `space`."""
    return [await ledger(book, now, enforced=enforced), *space(book.path)]


async def ledger(book: Ledger, now: float, *, enforced: bool) -> Check:
    """Look at its file, try to write it, and tell its history. `now` is the time of day.

    `enforced`: jobs have cgroups, from which a lost ledger is made again.
    """
    wrong = await asyncio.to_thread(book.look)
    fault = book.check()
    found = book.rebuilt if _is_news(book.rebuilt, now) else None
    text = str(book.path) + (_history(found) if found else "")
    if fault:
        todo = "make space, or the disk writable again: the agent goes on by itself then"
        if book.newer:
            todo = "install the agent that wrote it; without that, move it aside once all jobs are"
            todo += " released: the agent goes on by itself then"
        return Check(
            name="ledger",
            state="fault",
            text=f"{fault} ({text})" if found else fault,
            remedy=f"{todo}; meanwhile jobs run and are released, and nothing is granted",
        )
    if book.unseen:
        return Check(
            name="ledger",
            state="fault",
            text=f"{book.unseen} ({text})",
            remedy="remove cgroups below cgroup_allowed_roots that nobody uses, then `xce-nodeagent"
            " doctor --repair`; meanwhile jobs run and are released, and nothing is granted",
        )
    if wrong:
        return Check(
            name="ledger",
            state="warning",
            text=f"{wrong}; it was written anew from memory just now, and nothing is lost",
            remedy="see who writes in that folder, and whether the disk is well",
        )
    doubtful = [binding.job for binding in book.book if binding.doubtful]
    if doubtful:
        return Check(
            name="ledger",
            state="warning",
            text=f"{text}; in doubt: job {', job '.join(doubtful)}",
            remedy="release them by their job id when they have ended; an empty one is released"
            " by itself",
        )
    if found and found.whole:
        return Check(name="ledger", state="note", text=f"{text}; nothing is missing")
    if found:
        text += (
            "; what may be missing: drains, which attempts were released, and what was held back"
            " because somebody outside of any job has it open"
        )
        until = "delete the damaged file to end this line" if found.aside else "it ends by itself"
        return Check(
            name="ledger",
            state="warning",
            text=text,
            remedy=f"drain again what was drained, and see whether the disk is well; {until},"
            " seven days after it happened at the latest",
        )
    if not enforced:
        text += "; without fences nothing on the kernel tells of bindings if it is lost"
        return Check(name="ledger", state="note", text=text)
    return Check(name="ledger", state="ok", text=text)


def space(path: Path) -> list[Check]:
    """Warn where the disk of a ledger has no room to write it anew, before it is full."""
    try:
        disk = os.statvfs(path.parent)
        size = path.stat().st_size
    except OSError:
        return []  # the check of the ledger says what is wrong with it
    free, needed = disk.f_bavail * disk.f_frsize, size + LOG_BYTES + RESERVE_BYTES
    if free >= needed:
        return []
    return [
        Check(
            name="space",
            state="warning",
            text=f"the disk of {path.parent} has {free / 1e6:.1f} MB free; to start with a new"
            f" ledger takes {needed / 1e6:.1f} MB",
            remedy="make space: on a full disk nothing is granted",
        )
    ]


def _is_news(found: Rebuilt | None, now: float) -> bool:
    """Say whether people are to be told: for a week, or until the damaged file is deleted."""
    if found is None or now - found.at >= TOLD_SECONDS:
        return False
    return not found.aside or os.path.lexists(found.aside)


def _history(found: Rebuilt) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.at))
    text = f"; {'read' if found.whole else 'rebuilt'} {when}: {found.why}"
    if found.rows or found.aside:
        text += f"; {found.rows} events could be read"
    if found.kernel:
        text += f"; from the kernel: {found.kernel}"
    if found.aside:
        text += f"; the damaged one is {found.aside}"
    return text
