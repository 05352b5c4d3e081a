"""What doctor says of the reports upstream: how it stands with each sink."""

from __future__ import annotations

import time
from collections.abc import Iterable

from xce_nodeagent.model.wire import Check
from xce_nodeagent.upstream.delivery import Status

LAG_SECONDS = 10.0
"""For how long something may be on its way until people are told."""


def checks(statuses: Iterable[Status], now: float) -> list[Check]:
    """Say of each sink whether reports get there. `now` is the time of day."""
    return [_check(status, now) for status in statuses]


def _check(one: Status, now: float) -> Check:
    name = f"report.{one.kind}"
    if one.failing:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(one.failing))
        text = f"{one.reason}; no report gets there since {since}, {_last(one, now)}"
        text += f"; tried again in {one.wait:.0f} s" if one.wait >= 1 else "; it is tried now"
        remedy = one.remedy or "nothing, if it comes back: the newest report is tried again"
        return Check(name=name, state="warning", text=text, remedy=remedy)
    if one.lag >= LAG_SECONDS:
        text = f"{one.where}: nothing got there for {one.lag:.0f} s, {_last(one, now)}"
        remedy = "see what takes so long there; the newest report is kept"
        return Check(name=name, state="warning", text=text, remedy=remedy)
    text = f"{one.where}: {_last(one, now)}"
    if one.number:
        text += f"; {one.deliveries} in {one.bytes} bytes since the start"
    else:
        text += "; the first is on its way"
    if one.note:
        text += f"; {one.note}"
    # Whether it gets there nobody knows before one did.
    return Check(name=name, state="note" if one.note or not one.number else "ok", text=text)


def _last(one: Status, now: float) -> str:
    if not one.number:
        return "none since the start"
    return f"the last was report {one.number}, {max(0.0, now - one.delivered):.0f} s ago"
