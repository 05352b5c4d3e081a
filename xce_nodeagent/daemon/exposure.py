"""The exposure: where the configuration lets metrics be seen. Without it nothing runs, no timer."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from xce_nodeagent.daemon import listening
from xce_nodeagent.daemon.metrics import Measured, Metrics
from xce_nodeagent.daemon.scrape import Scrapes
from xce_nodeagent.daemon.textfile import Textfile
from xce_nodeagent.model.upstream import MetricsConfig
from xce_nodeagent.model.wire import Check

log = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""How soon it is tried again to listen where that failed: nobody tells when a port is free."""


class Exposure:
    """Shows metrics from `start` to `close`; `checks` tells what cannot be shown, and why."""

    def __init__(self, config: MetricsConfig, *, retry: float = RETRY_SECONDS) -> None:
        self._config = config
        self._retry = retry
        self._fault = ""
        self._scrapes: Scrapes | None = None
        self._textfile: Textfile | None = None
        self._again: asyncio.TimerHandle | None = None

    def start(self, of: Measured) -> None:
        """Begin, in the running event loop."""
        self._metrics = Metrics(of)
        if self._config.listen:
            self._listen()
        if self._config.textfile:
            path, seconds = Path(self._config.textfile), self._config.textfile_seconds
            self._textfile = Textfile(path, seconds, self._metrics.written)

    def _listen(self) -> None:
        self._again = None
        try:
            listener = listening.listen(self._config.listen)
        except OSError as error:
            # A path of more than 107 bytes has no error number, only words.
            why = error.strerror or str(error)
            if why != self._fault:
                log.warning("metrics are not served at %s: %s", self._config.listen, why)
            self._fault = why
            self._again = asyncio.get_running_loop().call_later(self._retry, self._listen)
            return
        self._fault = ""
        self._scrapes = Scrapes(listener, self._metrics.scraped)

    def checks(self) -> list[Check]:
        """Say for doctor where metrics are, or why not; nothing where none are wanted."""
        checks = []
        if where := self._config.listen:
            checks.append(
                Check(
                    name="metrics",
                    state="warning",
                    text=f"they are not served at {where}: {self._fault}",
                    remedy="free that place, or set another one in [metrics] listen; it is tried"
                    f" again every {self._retry:g} seconds",
                )
                if self._fault
                else Check(name="metrics", state="ok", text=f"served at {where}")
            )
        if (path := self._config.textfile) and self._textfile is not None:
            checks.append(
                Check(
                    name="metrics.textfile",
                    state="warning",
                    text=f"{path} cannot be written: {self._textfile.fault}",
                    remedy=f"let the agent's user (uid {os.geteuid()}) write in that folder; under"
                    " systemd name it in ReadWritePaths= of xce-nodeagent.service, too",
                )
                if self._textfile.fault
                else Check(name="metrics.textfile", state="ok", text=f"written to {path}")
            )
        return checks

    async def close(self) -> None:
        """Show nothing any more."""
        if self._again is not None:
            self._again.cancel()
        if self._scrapes is not None:
            self._scrapes.close()
            listening.leave(self._config.listen)
        if self._textfile is not None:
            await self._textfile.close()
