"""The sink of HTTP: reports by POST to one URL; whoever is there keeps them (docs/upstream.md).

A change is sent as a delta from the report that was taken last, with its digest in `If-Match`. A
receiver that has another one, or none, says 409 or 412 and gets the whole. What became of a report
without a good answer is not known, so the next one is whole as well.
"""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import ClassVar
from urllib.parse import parse_qsl, urlsplit

from xce_nodeagent.model.upstream import UpstreamHttpConfig, in_plain
from xce_nodeagent.upstream import body, secret
from xce_nodeagent.upstream.backoff import CAP_SECONDS
from xce_nodeagent.upstream.noanswer import NoAnswer
from xce_nodeagent.upstream.report import Report
from xce_nodeagent.upstream.secret import Secrets
from xce_nodeagent.upstream.sink import PLAIN, Undelivered
from xce_nodeagent.upstream.tls import Files, Tls
from xce_nodeagent.upstream.web import Answer, Connection

ANSWER_LARGEST = 64 << 10
"""Bytes of an answer that are read; there is nothing in it that is needed."""

_MISSED = (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED)
_LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, *_MISSED, *_LATER)
_SAID = 200  # characters of an answer that people are told
_WORD = 6  # characters of a part of a query that may be a secret; a shorter one is a number

_RENEW = "renew the certificate, or see `ca`, `cert` and `key`; they are read again by themselves"


class HttpSink:
    """Posts to one URL.

    `clock` is monotonic. With `random`, hosts that started together send their whole reports at
    different times. `seconds` is how long an answer may take, `program` the name that is sent.
    """

    kind: ClassVar[str] = "http"
    patience = CAP_SECONDS

    def __init__(
        self,
        config: UpstreamHttpConfig,
        random: Random,
        *,
        program: str = "",
        seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(config.url)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._tls = Tls(Files(config.ca, config.cert, config.key))
        self._connection = Connection(
            config.url,
            self._tls,
            seconds=seconds,
            largest=ANSWER_LARGEST,
        )
        # What stands in the query may be a secret.
        self._secrets = Secrets()
        for word in (parts.query, *(value for _, value in parse_qsl(parts.query))):
            if len(word) >= _WORD:
                self._secrets.keep(word)
        self.where = f"{self._connection.address}{parts.path}"
        self._plain = PLAIN if in_plain(config.url) else ""
        self._token = Path(config.token_file) if config.token_file else None
        self._full_seconds = config.full_seconds or math.inf
        self._random = random
        self._agent = f"xce-nodeagent/{program}"
        self._clock = clock
        self._there: Report | None = None
        self._whole_due = math.inf

    @property
    def note(self) -> str:
        """Say what is in plain, and that our certificate will end soon."""
        return self._plain or self._tls.soon()

    def deliver(self, report: Report) -> int:
        """Send what changed, or the whole; give the bytes of the bodies. Raise Undelivered."""
        before = self._there
        if before is None or before.head.node != report.head.node:
            return self._send(report, body.full(report))
        if self._clock() >= self._whole_due:
            return self._send(report, body.full(report))
        change = body.delta(before, report)
        size = self._send(report, change, after=before)
        return size if self._there is report else size + self._send(report, body.full(report))

    def tend(self) -> float:
        """Send the whole when it is due; give the seconds until it is."""
        there = self._there
        if there is None:
            return math.inf
        if self._clock() >= self._whole_due:
            self._send(there, body.full(there))
        return self._whole_due - self._clock()

    def close(self) -> None:
        """Give up the connection."""
        self._connection.close()

    def _send(self, report: Report, data: bytes, *, after: Report | None = None) -> int:
        """Post it. A delta that the receiver has no use for leaves nothing that is known there."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": self._agent,
        }
        if after is not None:
            headers["If-Match"] = f'"{after.head.report}"'
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._secrets.keep(secret.read(self._token))}"
        self._there = None
        try:
            answer = self._connection.ask("POST", self._path, data, headers)
        except NoAnswer as error:
            if not error.begun:
                self._there = after
            remedy = _RENEW if error.certificate else ""
            reason = self._secrets.said(error.reason)
            raise Undelivered(reason, remedy=remedy, hopeless=error.certificate) from None
        if after is not None and answer.status in _MISSED:
            return len(data)
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            if answer.status in _LATER:
                self._there = after
            raise _refusal(self.where, answer, len(data), self._secrets)
        self._there = report
        if after is None:
            self._whole_due = self._clock() + self._full_seconds * self._random.uniform(0.5, 1.0)
        return len(data)


def _refusal(where: str, answer: Answer, size: int, secrets: Secrets) -> Undelivered:
    """Say what a receiver's refusal means, and what helps."""
    status = answer.status
    said = secrets.said(answer.body.decode("utf-8", "replace"), _SAID)
    reason = f"{where}: {status}{f', {said}' if said else ''}"
    if status in _DENIED:
        remedy = "see what `token_file`, or the certificate in `cert`, is good for there"
    elif status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        remedy = f"let the receiver take bodies of this size: {size} bytes"
    elif HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        to = secrets.said(answer.headers.get("location", ""), _SAID)
        reason = f"{where}: {status}, a redirect to {to or 'nowhere'}, which is not followed"
        remedy = "set `url` to where reports are to go"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING:
        return Undelivered(reason, after=_wish(answer.headers.get("retry-after", "")))
    else:
        remedy = "see whether `url` is that of a receiver of reports"
    return Undelivered(reason, remedy=remedy, hopeless=True)


def _wish(told: str) -> float:
    """Give the seconds of a Retry-After (RFC 9110, 10.2.3); 0 for what is none."""
    if told.isascii() and told.isdecimal():
        return float(told[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(told).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
