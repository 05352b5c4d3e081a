"""What NVIDIA's library tells of cards while they run: events, and the figures of their health.

A session holds cards open as long as it lasts: those that it is given, and no others. NVML cannot
close one card alone, so whoever wants that ends the process.

Any call may block for ever inside the driver, so a helper makes it (privileged/listener.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from xce_nodeagent.host.nvanswer import card_at
from xce_nodeagent.model.health import Recovery, Sample, Told, Xid

EVENTS_LIMIT = 256
"""Events that are taken at once; the library keeps the others."""

_NONE = 0xFFFF_FFFF  # NVML_GPU_INSTANCE_ID_ANY: the event is of no instance
_CORE = 0  # NVML_TEMPERATURE_GPU
_SLOWDOWN = 1  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_HW_THERMAL_SLOWDOWN = 0x40
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, since driver 565
_RECOVERIES: tuple[Recovery, ...] = (
    "none", "reset", "reboot", "drain-p2p", "drain-reset", "imex", "bus-reset", "reboot",
)  # fmt: skip
"""In the order of NVML's nvmlDeviceGpuRecoveryAction_t; 7 is the reboot of the whole system."""


class Session:
    """Cards that are listened to. `begin` is told what is asked next: a call, or a card.

    `deaf` says of which cards no events come, and why. Raise OSError where there is no library, or
    it does not start: then there are no cards either.
    """

    def __init__(self, cards: Iterable[str], begin: Callable[[str], None]) -> None:
        import pynvml  # noqa: PLC0415  # only where there is a driver: it takes 6 MB

        self.deaf: dict[str, str] = {}
        self._nvml: Any = pynvml
        self._begin = begin
        self._handles: dict[str, Any] = {}
        try:
            begin("nvmlInit")
            pynvml.nvmlInit()
            begin("nvmlEventSetCreate")
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            raise OSError(f"NVML does not start: {error}") from None
        for card in cards:
            begin(card)
            try:
                self._open(card)
            except pynvml.NVMLError as error:
                self.deaf[card] = str(error)

    def _open(self, card: str) -> None:
        nvml = self._nvml
        handle = card_at(nvml, card)
        self._handles[card] = handle
        # What else comes says that figures have changed; the last one, that slices have.
        wanted = (
            nvml.nvmlEventTypeXidCriticalError
            | nvml.nvmlEventTypeDoubleBitEccError
            | nvml.nvmlEventTypeGpuUnavailableError
            | nvml.nvmlEventTypeGpuRecoveryAction
            | nvml.nvmlEventMigConfigChange
        )
        supported = nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted
        if not supported & nvml.nvmlEventTypeXidCriticalError:
            self.deaf[card] = "it has no events for XIDs"
        if supported:
            nvml.nvmlDeviceRegisterEvents(handle, supported, self._events)

    def wait(self, seconds: float) -> Told:
        """Wait for events for at most so long; an event of an unknown card has no card."""
        nvml = self._nvml
        found: list[tuple[str, Xid]] = []
        cut: set[str] = set()
        fault = ""
        milliseconds = int(seconds * 1000)
        try:
            for _ in range(EVENTS_LIMIT):
                self._begin("nvmlEventSetWait")
                data = nvml.nvmlEventSetWait_v2(self._events, milliseconds)
                card = self._card(data.device)
                if data.eventType == nvml.nvmlEventMigConfigChange:
                    cut.add(card)
                else:
                    found.append((card, self._event(data)))
                milliseconds = 0
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:
                fault = f"NVML gives no events: {error}"
        return Told(tuple(found), frozenset(cut), fault)

    def _event(self, data: Any) -> Xid:
        if data.eventType != self._nvml.nvmlEventTypeXidCriticalError:
            return Xid(0)
        gpu, compute = data.gpuInstanceId, data.computeInstanceId
        return Xid(
            int(data.eventData),
            None if gpu == _NONE else gpu,
            None if compute == _NONE else compute,
        )

    def _card(self, device: Any) -> str:
        wanted = _pointer(device)
        return next((c for c, handle in self._handles.items() if _pointer(handle) == wanted), "")

    def measure(self) -> dict[str, Sample]:
        """Give what each card says of itself; a card that was never open is lost."""
        found: dict[str, Sample] = {}
        for card, handle in self._handles.items():
            self._begin(card)
            found[card] = _Figures(self._nvml, handle).sample()
        return found | {c: Sample(lost=why) for c, why in self.deaf.items() if c not in found}


def _pointer(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


class _Figures:
    """One card's figures. What it does not answer is None."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._lost = ""

    def sample(self) -> Sample:
        nvml, handle = self._nvml, self._handle
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        rows = self._ask(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        pages = self._ask(lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))
        found = Sample(
            temperature=self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, _CORE)),
            slowdown_at=self._ask(
                lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, _SLOWDOWN)
            ),
            slowed=None if reasons is None else bool(reasons & _HW_THERMAL_SLOWDOWN),
            corrected=self._errors(_CORRECTED),
            uncorrected=self._errors(_UNCORRECTED),
            remap_pending=None if rows is None else bool(rows[2]),
            remap_failed=None if rows is None else bool(rows[3]),
            retire_pending=None if pages is None else bool(pages),
            recovery=self._recovery(),
        )
        return Sample(lost=self._lost) if self._lost else found

    def _errors(self, kind: int) -> int | None:
        nvml, handle = self._nvml, self._handle
        count = self._ask(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, kind, _VOLATILE))
        return None if count is None else int(count)

    def _recovery(self) -> Recovery | None:
        nvml = self._nvml
        values = self._ask(lambda: nvml.nvmlDeviceGetFieldValues(self._handle, [_RECOVERY_ACTION]))
        if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
            return None
        action = int(values[0].value.uiVal)
        return _RECOVERIES[action] if action < len(_RECOVERIES) else "unknown"

    def _ask(self, call: Callable[[], Any]) -> Any:
        if self._lost:
            return None
        try:
            return call()
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                self._lost = str(error)
            return None
