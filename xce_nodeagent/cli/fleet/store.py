"""The store that a fleet is read from: one look at it, and who follows it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from msgspec import to_builtins

from xce_nodeagent.cli.fleet.access import asked, asking, missing
from xce_nodeagent.cli.fleet.block import block_of
from xce_nodeagent.cli.fleet.settings import Settings
from xce_nodeagent.cli.fleet.survey import Survey
from xce_nodeagent.cli.fleet.view import FleetView
from xce_nodeagent.upstream.fleet import Fleet
from xce_nodeagent.upstream.mirror import Mirror
from xce_nodeagent.upstream.watcher import State, Watcher

_LOOK = 0.25  # seconds between two looks whether the store is away


class Store:
    """A fleet as it is read now."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self.survey = Survey(block_of(settings.fleet.block))
        self._fleet = fleet

    def view(self) -> FleetView:
        """Give what is shown of it."""
        return self.survey.view(self._fleet)

    def inventory(self, name: str) -> dict[str, Any] | None:
        """Give a node's inventory as `inventory --json` prints it; None where there is none."""
        found = self._fleet.nodes[name].inventory
        value: dict[str, Any] | None = None if found is None else to_builtins(found)
        return value


def look(settings: Settings, seconds: float) -> Store:
    """Read all of the store once. Raise Upstream."""
    keys = settings.keys
    with asking(settings, seconds) as client:
        revision, found = client.range(keys.prefix)
        mirror = Mirror(keys, grace=0)
        now = time.monotonic()
        # One look does not tell since when a node is gone: that is time 0.
        mirror.reset(((kv.key, kv.value, kv.lease) for kv in found), now=now, wall=0.0)
        cluster = str(client.cluster)
    return Store(settings, mirror.fleet(revision=revision, cluster=cluster, now=now, wall=0.0))


class Followed:
    """A fleet that is followed. `survey` makes views of it; it must be there in `seconds`."""

    def __init__(self, settings: Settings, watcher: Watcher, seconds: float) -> None:
        self.survey = Survey(block_of(settings.fleet.block))
        self._settings = settings
        self._watcher = watcher
        self._seconds = seconds
        self._first = time.monotonic() + seconds

    def next(self, after: tuple[Fleet, str] | None, seconds: float) -> tuple[Fleet, str]:
        """Give the fleet, and why it is out of date; wait until it is another than `after`.

        Raise Upstream where the store was not read even once by its deadline.
        """
        deadline = time.monotonic() + seconds
        while True:
            state = self._watcher.state
            fleet, late = self._watcher.snapshot, outdated(state)
            if fleet.revision and (after is None or fleet is not after[0] or late != after[1]):
                return fleet, late
            left = (deadline if fleet.revision else self._first) - time.monotonic()
            if left <= 0:
                if fleet.revision:
                    return fleet, late
                raise self._unread(state)
            with contextlib.suppress(TimeoutError):
                self._watcher.wait_for(
                    lambda other, seen=fleet: other is not seen,  # type: ignore[misc]  # a lambda cannot say the type of a default
                    seconds=min(left, _LOOK),
                )

    def _unread(self, state: State) -> Exception:
        why = f"nothing could be read in {self._seconds:g} s"
        if state.reason:
            why = f"{why}: {state.reason}"
        remedy = state.remedy or "see that it is well, or give it more time with --deadline"
        return missing(self._settings, f"{why}; {remedy}", kind=state.phase)


@contextlib.contextmanager
def followed(settings: Settings, seconds: float) -> Iterator[Followed]:
    """Follow the store's fleet. Raise Upstream where it cannot be read now."""
    with asking(settings, seconds) as client:
        client.range(settings.keys.prefix, keys_only=True)  # a page, for what refuses at once
    watcher = Watcher(asked(settings), settings.keys, grace=settings.fleet.grace_seconds)
    with watcher:
        yield Followed(settings, watcher, seconds)


def outdated(state: State) -> str:
    """Say why a fleet may be another by now; empty where the store is followed."""
    if state.phase != "away":
        return ""
    since = datetime.fromtimestamp(state.since).astimezone().isoformat(" ", "seconds")
    return f"the store is away since {since}: {state.reason}"
