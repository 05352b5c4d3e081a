"""What is deleted from the store: nodes that are gone for ever, and shapes that no node has."""

from __future__ import annotations

from xce_nodeagent.cli.fleet.access import asking
from xce_nodeagent.cli.fleet.settings import Settings
from xce_nodeagent.errors import BadRequest, Conflict, Upstream
from xce_nodeagent.model.name import printable
from xce_nodeagent.upstream import claim, keys
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdwire import Delete, Operation, absent
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.shapes import Collected, collect

_NAMED = 5  # nodes that cannot be read, and are named
_SAID = 64  # characters of an id that people are told


def forget(settings: Settings, names: tuple[str, ...], seconds: float) -> dict[str, int]:
    """Delete the reports of nodes; give how many keys each had.

    The store itself compares, in the same transaction, that no agent lives under the name. What
    many nodes share (their shape) stays: see `shapes`. Raise Conflict, BadRequest or Upstream;
    nodes before the one that it is about are deleted by then.
    """
    done: dict[str, int] = {}
    with asking(settings, seconds) as client:
        for name in names:
            done[name] = _forget(client, settings.keys, name)
    return done


def shapes(settings: Settings, seconds: float, *, dry_run: bool) -> Collected:
    """Delete the shapes that no node names; with `dry_run`, say which they are.

    Raise Conflict where a node cannot be read, whose shape may be any of them, or Upstream.
    """
    with asking(settings, seconds) as client:
        found = collect(client, settings.keys, dry_run=dry_run)
    if found.unread:
        named = printable(", ".join(found.unread[:_NAMED]))
        more = f" and {len(found.unread) - _NAMED} more" if len(found.unread) > _NAMED else ""
        raise Conflict(
            f"no shape is deleted: what {named}{more} reported cannot be read, and any may be"
            " theirs; let their agents report anew, update this program, or --forget them first",
            nodes=list(found.unread),
        )
    return found


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
    who = "its agent"
    if living is not None:
        who = f"agent {printable(living.agent[:_SAID])} of boot {printable(living.boot_id[:_SAID])}"
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
