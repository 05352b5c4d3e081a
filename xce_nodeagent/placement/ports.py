"""Ports: which ones a job gets, of those that this host manages. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xce_nodeagent.errors import BadPort, Busy, NeverFits, NoFitNow, Unhealthy
from xce_nodeagent.model.wire import PortAsk


def choose_ports(
    parts: Sequence[range],
    asks: Sequence[PortAsk],
    *,
    held: Collection[int] = (),
    in_use: Collection[int] = (),
) -> tuple[tuple[int, str], ...]:
    """Choose ports: (port, name) for each, in the order asked.

    A port that is asked for by its number must be free; of those that are counted, each ask gets
    the lowest run of neighbours that is long enough, or the lowest free ports where there is none.
    `held` are the ports of bindings, `in_use` those with a listener. Raise BadPort, Busy,
    Unhealthy, NoFitNow or NeverFits.
    """
    taken: set[int] = set()
    for ask in asks:
        if ask.port is not None:
            _check_port(ask.port, parts, held, in_use, taken)
            taken.add(ask.port)
    wanted = sum(ask.count or 0 for ask in asks)
    total = sum(len(part) for part in parts)
    if wanted + len(taken) > total:
        raise NeverFits(
            f"{wanted + len(taken)} ports wanted, but this host manages {total}",
            wanted=wanted,
            total=total,
        )
    closed = {*held, *in_use, *taken}
    left = total - sum(any(port in part for part in parts) for port in closed) if wanted else 0
    if wanted > left:
        raise NoFitNow(
            f"{wanted} ports wanted, but only {left} of {total} can be had now:"
            f" {len(set(held))} are held, {len(set(in_use) - set(held))} have a foreign listener",
            wanted=wanted,
            free=left,
            total=total,
        )
    given: list[tuple[int, str]] = []
    for ask in asks:
        if ask.port is not None:
            given.append((ask.port, ask.name or ""))
        else:
            run = _run(parts, closed, ask.count or 0)
            given += [(port, ask.name or "") for port in run]
            closed.update(run)
    return tuple(given)


def _check_port(
    port: int,
    parts: Sequence[range],
    held: Collection[int],
    in_use: Collection[int],
    taken: Collection[int],
) -> None:
    if not any(port in part for part in parts):
        ranges = ", ".join(f"{part[0]}-{part[-1]}" for part in parts)
        raise BadPort(f"port {port}: this host manages {ranges}", port=port)
    if port in taken:
        raise BadPort(f"port {port} is asked for twice", port=port)
    if port in held:
        raise Busy(f"port {port} is held by another job", port=port)
    if port in in_use:
        raise Unhealthy(
            f"port {port}: a process outside any job uses it; `ss -lntup` shows which", port=port
        )


def _run(parts: Sequence[range], closed: Collection[int], count: int) -> Sequence[int]:
    """Give the lowest run of neighbours; the lowest ports where no run is long enough.

    It looks no further than it must: a range may have 60,000 ports.
    """
    lowest: list[int] = []
    for part in parts:
        run: list[int] = []
        for port in part:
            if port in closed:
                run = []
                continue
            run.append(port)
            if len(run) == count:
                return run
            if len(lowest) < count:
                lowest.append(port)
    return lowest
