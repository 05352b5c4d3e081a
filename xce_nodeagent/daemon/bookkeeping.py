"""What doctor says of the ledger: can it be written, and was it ever lost."""

from __future__ import annotations

import time

from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.model.wire import Check

TOLD_SECONDS = 7 * 86_400
"""How long people are warned of a ledger that was lost."""


def ledger(book: Ledger, now: float, *, enforced: bool) -> Check:
    """Try to write it, and tell its history. `now` is the time of day.

    `enforced`: jobs have cgroups, from which a lost ledger is made again.
    """
    text = str(book.path)
    if found := book.rebuilt:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.at))
        text += f"; rebuilt {when}: {found.why}"
        if found.rows or found.aside:
            text += f"; {found.rows} events could be read"
        if found.kernel:
            text += f"; from the kernel: {found.kernel}"
        if found.aside:
            text += f"; the damaged one is {found.aside}"
        text += (
            "; what may be missing: drains, which attempts were released, and what was held back"
            " because somebody outside of any job has it open"
        )
    if fault := book.check():
        return Check(
            name="ledger",
            state="fault",
            text=f"{fault} ({text})" if book.rebuilt else fault,
            remedy="make space, or the disk writable again: the agent goes on by itself then;"
            " meanwhile jobs run and are released, and nothing is granted",
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
    if book.rebuilt:
        return Check(
            name="ledger",
            state="warning" if now - book.rebuilt.at < TOLD_SECONDS else "note",
            text=text,
            remedy="drain again what was drained, and see whether the disk is well",
        )
    if not enforced:
        text += "; without fences nothing on the kernel tells of bindings if it is lost"
        return Check(name="ledger", state="note", text=text)
    return Check(name="ledger", state="ok", text=text)
