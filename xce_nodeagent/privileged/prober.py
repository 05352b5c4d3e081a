"""The prober: asks a vendor's library, which may block for ever, or crash.

The library is called in a thread of its own. When that does not come back in time, the answer names
the device that it was asked about, and the prober ends, thread and all. Behind this there is a
timer whose signal is SIGKILL, for code that lets no thread of ours run: nothing can block or catch
it. Only a call that hangs uninterruptibly in the driver outlives that, and such a process is beyond
anybody's reach.
"""

from __future__ import annotations

import ctypes
import signal
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.serve import Last
from xce_nodeagent.privileged.syscall import call

Answer = tuple[str, str, dict[str, Any]]
"""State, reason and facts, as ops.Probed has them."""

Probe = Callable[[tuple[str, ...], Callable[[str], None], tuple[str, ...] | None], Answer]
"""Asks the library: what to skip, whom to tell each device before it is asked, and which devices
to open; None is all."""

FUSE_AFTER = 2.0
"""Seconds after that until the timer kills."""

_CLOCK_MONOTONIC = 1
_SIGEV_SIGNAL = 0


class Prober:
    """Answers `Probe` by what `probe` says.

    One that did not come back within `patience` (seconds) is answered as an error whose facts name
    the device or the call that it hangs at, in the library's door's words: `{"hung": ADDRESS}`.
    """

    def __init__(self, probe: Probe, *, patience: float) -> None:
        self._probe = probe
        self._patience = patience
        self._fuse = Fuse()

    def handle(self, request: ops.Probe, fds: Sequence[int]) -> ops.ProberAnswer:
        """Ask the library; raise Last when it hangs."""
        if fds:
            raise Violation("Probe came with a descriptor")
        asked = [""]  # the last one is what the library is asked about now
        result: list[Answer | BaseException] = []

        def ask() -> None:
            try:
                result.append(self._probe(request.skip, asked.append, request.only))
            except BaseException as error:  # noqa: BLE001  # it is raised again, below
                result.append(error)

        self._fuse.light(self._patience + FUSE_AFTER)
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(self._patience)
        # Out, if it came back; and if it did not, the answer may take its time to be sent.
        self._fuse.light(0 if result else self._patience + FUSE_AFTER)
        if not result:
            where = f" at {asked[-1]}" if asked[-1] else ""
            reason = f"the {request.vendor} library did not answer{where} in {self._patience:g} s"
            raise Last(ops.Probed("error", reason, {"hung": asked[-1]}))
        if isinstance(result[0], BaseException):
            raise result[0]
        state, reason, facts = result[0]
        return ops.Probed(state, reason, facts)  # type: ignore[arg-type]  # the library's door checks

    def close(self) -> None:
        """There is nothing to let go of."""


class Fuse:
    """A timer that kills this process (timer_create(2))."""

    def __init__(self) -> None:
        # struct sigevent: value, signal, kind; the rest of its 64 bytes is for other kinds.
        event = ctypes.create_string_buffer(
            struct.pack("@Qii", 0, signal.SIGKILL, _SIGEV_SIGNAL), 64
        )
        made = ctypes.c_int()
        call("timer_create", _CLOCK_MONOTONIC, event, ctypes.byref(made))
        self._timer = made.value

    def light(self, seconds: float) -> None:
        """Let it burn so many seconds from now; 0 puts it out."""
        whole = int(seconds)
        spec = struct.pack("@4q", 0, 0, whole, int((seconds - whole) * 1e9))
        call("timer_settime", self._timer, 0, ctypes.create_string_buffer(spec, len(spec)), None)
