"""What is begun where metrics are wanted, and what doctor says of it; and where they are not."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from metrics.served import local

from xce_nodeagent.daemon.exposure import Exposure
from xce_nodeagent.daemon.meter import Meter
from xce_nodeagent.errors import Busy
from xce_nodeagent.model.upstream import MetricsConfig

PATIENCE = 20.0


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110  # nobody is told of it
            await asyncio.sleep(0.01)


def _told(exposure: Exposure) -> list[tuple[str, str]]:
    return [(one.state, one.text) for one in exposure.checks()]


def test_without_configuration_nothing_is_begun() -> None:
    """No socket, no timer, no task: an idle agent is woken by nothing of this."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = len(loop._scheduled), len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        exposure = Exposure(MetricsConfig())
        exposure.start(None)  # nobody is asked for anything
        await asyncio.sleep(0)
        after = len(loop._scheduled), len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
        assert after == before
        assert exposure.checks() == []
        await exposure.close()

    asyncio.run(main())


def test_a_port_that_is_free_again_is_taken() -> None:
    where = local()

    async def main() -> None:
        exposure = Exposure(MetricsConfig(listen=where), retry=0.01)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", int(where.rpartition(":")[2])))
            taken.listen()
            exposure.start(None)
            why = f"they are not served at {where}: Address already in use"
            assert _told(exposure) == [("warning", why)]
        await _until(lambda: _told(exposure) == [("ok", f"served at {where}")])
        await exposure.close()

    asyncio.run(main())


def test_a_file_that_cannot_be_written_is_told(tmp_path) -> None:
    """Here because nobody is there to be asked: a fault of ours ends nothing either."""
    path = f"{tmp_path}/xce.prom"

    async def main() -> None:
        exposure = Exposure(MetricsConfig(textfile=path))
        exposure.start(None)
        await _until(lambda: _told(exposure)[0][0] == "warning")
        ((_, text),) = _told(exposure)
        assert text.startswith(f"{path} cannot be written: AttributeError")
        assert "ReadWritePaths=" in exposure.checks()[0].remedy
        await exposure.close()

    asyncio.run(main())


def test_what_clients_call_makes_no_series() -> None:
    meter = Meter()
    known = len(meter.calls)
    for number in range(1000):
        meter.called(f"io.xce.NodeAgent.Method{number}", 0.0)
        meter.called(f"\ud800{number}", 0.0, Busy("x"))
    assert len(meter.calls) == known + 1
    assert meter.calls["other", "busy"] == meter.calls["other", "ok"] == 1000
