"""What is asked of the listener, and what of it is a violation."""

from __future__ import annotations

import os

import msgspec
import pytest

from xce_nodeagent.model.health import Told
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.listener import Listener

CARD = "0000:1b:00.0"


class Session:
    deaf: dict[str, str]

    def __init__(self, cards, begin):
        self.deaf = {}
        for card in cards:
            begin(card)

    def wait(self, seconds):
        return Told()

    def measure(self):
        return {}


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read
    os.close(read)
    os.close(write)


def test_it_has_the_same_cards_open_until_it_ends(pipe):
    listener = Listener(Session, patience=30)
    assert listener.handle(ops.Listen((CARD,)), (pipe,)) == ops.Heard()
    assert listener.handle(ops.Listen((CARD,), 0.01), (pipe,)) == ops.Heard()
    with pytest.raises(Violation, match="other cards"):
        listener.handle(ops.Listen((CARD, "0000:2b:00.0")), (pipe,))
    with pytest.raises(Violation, match="without the end of a pipe"):
        listener.handle(ops.Listen((CARD,)), ())


def test_a_library_that_does_not_start_is_a_fault(pipe):
    def no_library(cards, begin):
        raise OSError("NVML does not start: Driver Not Loaded")

    listener = Listener(no_library, patience=30)
    heard = listener.handle(ops.Listen((CARD,)), (pipe,))
    assert heard.fault == "NVML does not start: Driver Not Loaded"


@pytest.mark.parametrize(
    "request_",
    [
        {"type": "listen", "cards": ["../../etc"], "seconds": 1},
        {"type": "listen", "cards": [CARD], "seconds": -1},
        {"type": "listen", "cards": [CARD], "seconds": 1e9},
        {"type": "listen", "cards": [f"{CARD}\n"], "seconds": 1},
        {"type": "probe", "vendor": "nvidia"},
    ],
)
def test_what_is_no_request_of_it_is_refused(request_):
    decoder = msgspec.msgpack.Decoder(ops.ListenerRequest)
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.msgpack.encode(request_))


@pytest.mark.parametrize("only", [["0000:1b:00.0/../.."], ["x"], [7], "0000:1b:00.0"])
def test_a_probe_names_cards_by_their_addresses(only):
    decoder = msgspec.msgpack.Decoder(ops.ProberRequest)
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.msgpack.encode({"type": "probe", "vendor": "nvidia", "only": only}))
