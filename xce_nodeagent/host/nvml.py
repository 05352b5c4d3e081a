"""NVIDIA's management library, through pynvml; the one place that knows it.

`probe` may block for ever inside the driver, so an agent has it called in a helper that ends
itself. Sources: NVML API Reference Guide (what each call answers), and for what the library does
not know the driver's README (/proc/driver/nvidia).
"""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Callable, Collection
from typing import Any

DRIVER = "/proc/driver/nvidia"
"""There when the kernel's driver is loaded."""

LIBRARY = "libnvidia-ml.so.1"
LEFT_ALONE = "hung a prober, and is not asked again until something changes"
Answer = tuple[str, str, dict[str, Any]]


def load_bindings() -> None:
    """Import pynvml now, before its files are out of reach; the library itself is not opened."""
    import pynvml  # noqa: F401, PLC0415  # only where there is a driver: it takes 6 MB


def probe(skip: Collection[str] = (), started: Callable[[str], None] | None = None) -> Answer:
    """Ask the library about all devices: (state, reason, facts), as `Probed` has them.

    `started` is told what is asked next, so that somebody knows where a probe hangs: a call that is
    about no device by its name, a device by its place in NVML's order as long as only that is
    known, then by its PCI address. What `skip` names in these words is not asked: it hung before.

    `facts` has `driver_version` and `devices`; of a device `nvml_index pci_address uuid name minor
    memory_bytes compute_capability serial mig_mode`, `missing` (attribute: reason) for what it did
    not answer, `lost` (a reason) where it cannot be talked to, `skipped`, and `mig`, its slices:
    `uuid name memory_bytes gpu_instance compute_instance missing`.
    """

    def begin(what: str) -> None:
        if what in skip:
            raise _LeftAloneError(f"{what} {LEFT_ALONE}")
        if started is not None:
            started(what)

    try:
        begin(LIBRARY)
        # Without the library pynvml need not be imported: that takes longer than the rest.
        ctypes.CDLL(LIBRARY)
    except _LeftAloneError as error:
        return "error", str(error), {}
    except OSError as error:
        return "none", f"no NVIDIA driver library: {error}", {}
    import pynvml  # noqa: PLC0415  # see above

    try:
        begin("nvmlInit")
        pynvml.nvmlInit()
    except _LeftAloneError as error:
        return "error", str(error), {}
    except pynvml.NVMLError as error:
        reason = f"NVML does not start: {error}"
        later = (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_UNINITIALIZED)
        return "not_yet" if error.value in later else "error", reason, {}
    try:
        return "found", "", _facts(pynvml, begin)
    except _LeftAloneError as error:
        return "error", str(error), {}
    except pynvml.NVMLError as error:
        return "error", f"NVML fails: {error}", {}
    finally:
        with contextlib.suppress(_LeftAloneError):
            begin("nvmlShutdown")
            pynvml.nvmlShutdown()


def _facts(nvml: Any, begin: Callable[[str], None]) -> dict[str, Any]:
    facts: dict[str, Any] = {"devices": []}
    try:
        begin("nvmlSystemGetDriverVersion")
        _ask(nvml, facts, "driver_version", nvml.nvmlSystemGetDriverVersion)
    except _LeftAloneError as error:
        facts["missing"] = {"driver_version": str(error)}
    begin("nvmlDeviceGetCount")
    for index in range(nvml.nvmlDeviceGetCount()):
        device: dict[str, Any] = {"nvml_index": index}
        facts["devices"].append(device)
        try:
            begin(f"NVML device {index}")
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            address = pci_address(str(nvml.nvmlDeviceGetPciInfo(handle).busId))
        except (nvml.NVMLError, _LeftAloneError) as error:
            device["lost"] = str(error)
            continue
        device["pci_address"] = address
        try:
            begin(address)
        except _LeftAloneError:
            device["skipped"] = True
            continue
        _device(nvml, handle, device)
    return facts


class _LeftAloneError(Exception):
    """What would be asked next hung before; never seen outside."""


def _device(nvml: Any, handle: Any, device: dict[str, Any]) -> None:
    _ask(nvml, device, "uuid", nvml.nvmlDeviceGetUUID, handle)
    _ask(nvml, device, "name", nvml.nvmlDeviceGetName, handle)
    _ask(nvml, device, "minor", nvml.nvmlDeviceGetMinorNumber, handle)
    _ask(nvml, device, "serial", nvml.nvmlDeviceGetSerial, handle)
    _ask(nvml, device, "memory_bytes", lambda h: nvml.nvmlDeviceGetMemoryInfo(h).total, handle)
    _ask(
        nvml,
        device,
        "compute_capability",
        lambda h: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(h)),
        handle,
    )
    _ask(nvml, device, "mig_mode", lambda h: nvml.nvmlDeviceGetMigMode(h)[0], handle)
    if device.get("mig_mode") == nvml.NVML_DEVICE_MIG_ENABLE:
        device["mig"] = []
        _ask(nvml, device, "mig", _slices, nvml, handle)


def _slices(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Give a card's slices. Their indexes may have gaps: a slice that was taken away leaves one."""
    found: list[dict[str, Any]] = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        one: dict[str, Any] = {}
        _ask(nvml, one, "uuid", nvml.nvmlDeviceGetUUID, mig)
        _ask(nvml, one, "name", nvml.nvmlDeviceGetName, mig)
        _ask(nvml, one, "memory_bytes", lambda h: nvml.nvmlDeviceGetMemoryInfo(h).total, mig)
        _ask(nvml, one, "gpu_instance", nvml.nvmlDeviceGetGpuInstanceId, mig)
        _ask(nvml, one, "compute_instance", nvml.nvmlDeviceGetComputeInstanceId, mig)
        found.append(one)
    return found


def _ask(nvml: Any, facts: dict[str, Any], name: str, call: Callable[..., Any], *args: Any) -> None:
    """Put one answer into the facts, or the reason why there is none; the others go on."""
    try:
        facts[name] = call(*args)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            facts["lost"] = str(error)
        facts.setdefault("missing", {})[name] = str(error)


def pci_address(bus_id: str) -> str:
    """Write NVML's bus id (`00000000:1B:00.0`) as sysfs does (`0000:1b:00.0`)."""
    match = re.fullmatch(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", bus_id)
    return f"{int(match[1], 16):04x}:{match[2].lower()}" if match else bus_id.lower()
