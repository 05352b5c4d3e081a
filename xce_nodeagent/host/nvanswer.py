"""One answer of NVIDIA's library: put among the facts, or the reason why there is none.

What is asked of it stands in `nvml.py` (the host, a card), `nvlink.py` and `nvmig.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def ask(nvml: Any, facts: dict[str, Any], name: str, call: Callable[..., Any], *args: Any) -> None:
    """Put one answer into the facts under its name, or why there is none; the others go on."""

    def one() -> dict[str, Any]:
        return {name: call(*args)}

    ask_many(nvml, facts, name, one)


def ask_many(
    nvml: Any, facts: dict[str, Any], what: str, call: Callable[..., dict[str, Any]], *args: Any
) -> None:
    """Put all that one call answers into the facts; `what` is missing where it answers nothing."""
    try:
        facts.update(call(*args))
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            facts["lost"] = str(error)
        facts.setdefault("missing", {})[what] = str(error)
    except (AttributeError, ValueError) as error:
        # Bindings that are older than the call, or a text that is none (pynvml decodes it).
        facts.setdefault("missing", {})[what] = f"{type(error).__name__}: {error}"


def card_at(nvml: Any, address: str) -> Any:
    """Give the handle of the card at a PCI address.

    NVML takes a card up when its handle is asked for, and no other one for this (reference:
    nvmlInit_v2, nvmlDeviceGetHandleByPciBusId_v2).
    """
    return nvml.nvmlDeviceGetHandleByPciBusId(address)


def pci_address(bus_id: str) -> str:
    """Write NVML's bus id (`00000000:1B:00.0`) as sysfs does (`0000:1b:00.0`)."""
    match = re.fullmatch(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", bus_id)
    return f"{int(match[1], 16):04x}:{match[2].lower()}" if match else bus_id.lower()
