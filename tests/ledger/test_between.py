"""The power goes while a ledger is put into the place of another: it is all the old, or the new.

Nothing of the old one's log may be taken for the new one's.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib

import pytest

from xce_nodeagent.binding.fold import encode
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.model import binding as b


class Power(BaseException):
    """It is gone."""


def opened(path):
    return Ledger(path, "boot", lambda: 1000.0, uptime=lambda: 50.0, log_bytes=0, reserve_bytes=0)


@pytest.mark.parametrize("renames", range(7))
def test_the_power_goes_between_two_names(tmp_path, monkeypatch, renames):
    path = tmp_path / "ledger.db"
    ledger = opened(path)
    for number in range(50):
        ledger.commit(b.Drained(id=f"GPU-{number}", reason="x" * 300))
    # A commit that was told to have failed is on the disk for all that: it is all written anew.
    body = encode(b.Drained(id="told no", reason=""))
    with contextlib.closing(sqlite3.connect(path)) as other:
        row = (99, 1.0, "boot", zlib.crc32(body), body, 1.0)
        other.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", row)
        other.commit()
    ledger._store._suspect = True
    done = []
    rename = os.rename

    def until(*names):
        if len(done) == renames:
            raise Power
        done.append(names)
        rename(*names)

    with monkeypatch.context() as power:
        power.setattr(os, "rename", until)
        with contextlib.suppress(Power):
            ledger.commit(b.Drained(id="last", reason="while the power went"))
    old = path.exists() and "last" not in ledger.book.drained
    ledger._store.db = None  # as a kill leaves it
    again = opened(path)
    known = set(again.book.drained)
    before = {f"GPU-{number}" for number in range(50)}
    asked = {"last"} & ledger.book.drained.keys()
    assert known == before | ({"told no"} if old else asked)
    again.close()
