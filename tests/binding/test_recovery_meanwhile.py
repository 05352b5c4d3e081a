"""Recovery waits for the binder, and what is left over is cleaned meanwhile."""

from __future__ import annotations

import asyncio

from xce_nodeagent.binding.recovery import recover
from xce_nodeagent.model import wire
from xce_nodeagent.model.binding import ReleaseIntended

FIRST, SECOND = ("1", "a"), ("2", "a")


def test_a_binding_that_is_cleaned_while_another_is_recovered_stays_closed(node):
    for job, attempt in (FIRST, SECOND):
        asyncio.run(node.life.prepare(wire.Prepare(job=job, attempt=attempt)))
        node.ledger.commit(ReleaseIntended(job=job, attempt=attempt))
    node.crash()
    node.open()
    take_back = node.executor.take_back

    async def slow(binding, meanwhile=lambda: None):
        if binding.key == FIRST:
            await node.life.releases.undo(SECOND)
        return await take_back(binding, meanwhile)

    node.executor.take_back = slow
    counts = asyncio.run(recover(node.ledger, node.executor, node.life))
    assert counts == {"released": 1}
    assert not node.ledger.book.live
    assert not node.books.bound
