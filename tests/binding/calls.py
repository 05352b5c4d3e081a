"""What callers ask of a node, and its crash, each as one call."""

from __future__ import annotations

import asyncio

from xce_nodeagent.binding.recovery import recover
from xce_nodeagent.model import wire


def run(work):
    return asyncio.run(work)


def prepare(node, job="1", **ask):
    return run(node.life.prepare(wire.Prepare(job=job, **ask)))


def release(node, job="1", **ask):
    return run(node.life.releases.release(wire.Release(job=job, **ask)))


def restart(node):
    node.crash()
    node.open()
    return run(recover(node.ledger, node.executor, node.life))
