"""Nodes that are gone for ever: what the store has of them is deleted."""

from __future__ import annotations

from xce_nodeagent.cli.fleet.access import asking
from xce_nodeagent.cli.fleet.settings import Settings
from xce_nodeagent.errors import BadRequest, Conflict, Upstream
from xce_nodeagent.upstream import claim, keys
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdwire import Delete, Operation, absent
from xce_nodeagent.upstream.keys import Keys


def forget(settings: Settings, names: tuple[str, ...], seconds: float) -> dict[str, int]:
    """Delete the reports of nodes; give how many keys each had.

    The store itself compares, in the same transaction, that no agent lives under the name. What
    many nodes share (their shape) stays. Raise Conflict, BadRequest or Upstream; nodes before the
    one that it is about are deleted by then.
    """
    done: dict[str, int] = {}
    with asking(settings, seconds) as client:
        for name in names:
            done[name] = _forget(client, settings.keys, name)
    return done


def _forget(client: Client, names: Keys, name: str) -> int:
    prefixes = (names.node(name), names.rivals(name))
    count = sum(1 for prefix in prefixes for _ in client.range(prefix, keys_only=True)[1])
    if not count and client.get(names.live(name)) is None:
        raise BadRequest(
            f"NODE {name!r}: the store has no such node; `fleet` lists them", node=name
        )
    delete = [Operation(request_delete_range=Delete(one, keys.end(one))) for one in prefixes]
    if client.txn([absent(names.live(name))], delete).succeeded:
        return count
    found = client.get(names.live(name))
    living = claim.read(found.value) if found is not None else None
    who = f"agent {living.agent} of boot {living.boot_id}" if living else "its agent"
    if found is not None and not found.lease:
        raise Upstream(
            f"NODE {name!r}: its sign of life has no lease and would never end; who wrote it must"
            f" delete {names.live(name).decode()}",
            node=name,
        )
    raise Conflict(
        f"NODE {name!r}: {who} lives, and would report it again: stop it, wait until its lease has"
        " ended, and try again",
        node=name,
    )
