"""NVIDIA's management library, through pynvml; the one place that knows it.

`probe` may block for ever inside the driver, so an agent has it called in a helper that ends
itself. Sources: NVML API Reference Guide (what each call answers), and for what the library does
not know the driver's README (/proc/driver/nvidia).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Collection
from typing import Any

from xce_nodeagent.host import nvlink, nvmig
from xce_nodeagent.host.nvanswer import ask, ask_many, card_at, pci_address

DRIVER = "/proc/driver/nvidia"
"""There when the kernel's driver is loaded."""

LIBRARY = "libnvidia-ml.so.1"
LEFT_ALONE = "hung a prober, and is not asked again until something changes"
Answer = tuple[str, str, dict[str, Any]]

CARDS_LIMIT = 256
"""Cards that are asked about, whatever the library counts: of 256 minors some are no card's."""

_CPU_WORDS, _NODE_WORDS = 128, 16  # 8192 CPUs and 1024 nodes: what Linux can be built for (x86)
_NODE_SCOPE = 0  # NVML_AFFINITY_SCOPE_NODE
_UNTOLD_BYTE = 0xFF  # platform data that the board's firmware does not give
_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")


def load_bindings() -> None:
    """Import pynvml now, before its files are out of reach; the library itself is not opened."""
    import pynvml  # noqa: F401, PLC0415  # only where there is a driver: it takes 6 MB


def probe(
    skip: Collection[str] = (),
    started: Callable[[str], None] | None = None,
    only: Collection[str] | None = None,
) -> Answer:
    """Ask the library about all devices: (state, reason, facts), as `Probed` has them.

    `started` is told what is asked next, so that somebody knows where a probe hangs: a call that is
    about no device by its name, a device by its place in NVML's order as long as only that is
    known, then by its PCI address. What `skip` names in these words is not asked: it hung before.
    `only`: open the cards at these PCI addresses and no others.

    `facts` has `driver_version cuda_version` and `devices`; `host/fact.py` lists what is told of a
    device, of a slice of one and of its links. A device has besides `missing` (fact: reason) for
    what it did not answer, `lost` (a reason) where it cannot be talked to, and `skipped`.
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
    if only is not None and not only:
        return "found", "", {"devices": []}
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
        return "found", "", _facts(pynvml, begin, only)
    except _LeftAloneError as error:
        return "error", str(error), {}
    except pynvml.NVMLError as error:
        return "error", f"NVML fails: {error}", {}
    finally:
        with contextlib.suppress(_LeftAloneError, pynvml.NVMLError):
            begin("nvmlShutdown")
            pynvml.nvmlShutdown()


def _facts(nvml: Any, begin: Callable[[str], None], only: Collection[str] | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"devices": []}
    for name, what, call in (
        ("driver_version", "nvmlSystemGetDriverVersion", _driver_version),
        ("cuda_version", "nvmlSystemGetCudaDriverVersion", _cuda_version),
    ):
        try:
            begin(what)
            ask(nvml, facts, name, call, nvml)
        except _LeftAloneError as error:
            facts.setdefault("missing", {})[name] = str(error)
    if only is not None:
        facts["devices"] = [_named(nvml, address, begin) for address in sorted(only)]
        return facts
    begin("nvmlDeviceGetCount")
    for index in range(min(nvml.nvmlDeviceGetCount(), CARDS_LIMIT)):
        device: dict[str, Any] = {"nvml_index": index}
        facts["devices"].append(device)
        try:
            begin(f"NVML device {index}")
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            address = pci_address(str(nvml.nvmlDeviceGetPciInfo(handle).busId))
        except (nvml.NVMLError, UnicodeDecodeError, _LeftAloneError) as error:
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


def _named(nvml: Any, address: str, begin: Callable[[str], None]) -> dict[str, Any]:
    """Ask the card at an address, and take up no other one for that."""
    device: dict[str, Any] = {"pci_address": address}
    try:
        begin(address)
        handle = card_at(nvml, address)
    except _LeftAloneError:
        device["skipped"] = True
    except nvml.NVMLError as error:
        device["lost"] = str(error)
    else:
        _device(nvml, handle, device)
    return device


class _LeftAloneError(Exception):
    """What would be asked next hung before; never seen outside."""


def _driver_version(nvml: Any) -> str:
    return str(nvml.nvmlSystemGetDriverVersion())


def _cuda_version(nvml: Any) -> str:
    """Write 12040 as 12.4. The older function gives the library's version, not the driver's."""
    number = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{number // 1000}.{number % 1000 // 10}"


def _device(nvml: Any, handle: Any, device: dict[str, Any]) -> None:
    for name, call in _ASKED:
        ask(nvml, device, name, call, nvml, handle)
    for name, call in _ASKED_MANY:
        ask_many(nvml, device, name, call, nvml, handle)
    if device.get("mig_mode") == nvml.NVML_DEVICE_MIG_ENABLE:
        device["mig"] = []
        ask(nvml, device, "mig", nvmig.slices, nvml, handle)
        ask(nvml, device, "gpu_instances", nvmig.gpu_instances, nvml, handle)
    elif not device.get("lost"):  # in MIG mode there are no NVLinks (MIG User Guide)
        ask(nvml, device, "nvlinks", nvlink.peers, nvml, handle)


_ASKED: tuple[tuple[str, Callable[[Any, Any], Any]], ...] = (
    ("uuid", lambda nvml, h: nvml.nvmlDeviceGetUUID(h)),
    ("name", lambda nvml, h: nvml.nvmlDeviceGetName(h)),
    ("minor", lambda nvml, h: nvml.nvmlDeviceGetMinorNumber(h)),
    ("serial", lambda nvml, h: nvml.nvmlDeviceGetSerial(h)),
    ("memory_bytes", lambda nvml, h: nvml.nvmlDeviceGetMemoryInfo(h).total),
    (
        "compute_capability",
        lambda nvml, h: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(h)),
    ),
    ("mig_mode", lambda nvml, h: nvml.nvmlDeviceGetMigMode(h)[0]),
    ("ecc_mode", lambda nvml, h: "on" if nvml.nvmlDeviceGetEccMode(h)[0] else "off"),
    ("power_limit_watts", lambda nvml, h: nvml.nvmlDeviceGetPowerManagementLimit(h) // 1000),
    ("persistence_mode", lambda nvml, h: bool(nvml.nvmlDeviceGetPersistenceMode(h))),
    ("compute_mode", lambda nvml, h: _compute_mode(nvml.nvmlDeviceGetComputeMode(h))),
    ("module_id", lambda nvml, h: nvml.nvmlDeviceGetModuleId(h)),
    ("cores", lambda nvml, h: nvml.nvmlDeviceGetNumGpuCores(h)),
    ("cpus", lambda nvml, h: _members(nvml.nvmlDeviceGetCpuAffinity(h, _CPU_WORDS))),
    (
        "numa_nodes",
        lambda nvml, h: _members(nvml.nvmlDeviceGetMemoryAffinity(h, _NODE_WORDS, _NODE_SCOPE)),
    ),
)
"""Facts of a card, each of one call."""


def _remapped(nvml: Any, handle: Any) -> dict[str, Any]:
    _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"row_remap_pending": bool(pending), "row_remap_failed": bool(failed)}


def _platform(nvml: Any, handle: Any) -> dict[str, Any]:
    """Give where a card of a rack-scale machine sits (GB200 and later; HGX has the host alone)."""
    for version, names in _PLATFORM:
        told = getattr(nvml, version)()
        try:
            nvml.nvmlDeviceGetPlatformInfo(handle, ctypes.byref(told))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
                raise
            continue
        # Bytes; pynvml takes them for characters, and stumbles over those that are none.
        whole = bytes(told)
        numbers = {name: whole[getattr(type(told), field).offset] for name, field in names.items()}
        return {name: value for name, value in numbers.items() if value != _UNTOLD_BYTE}
    return {}


_PLATFORM = (
    (
        "c_nvmlPlatformInfo_v2_t",
        {"slot_number": "slotNumber", "tray_index": "trayIndex", "host_id": "hostId"},
    ),
    (
        "c_nvmlPlatformInfo_v1_t",
        {
            "slot_number": "chassisPhysicalSlotNumber",
            "tray_index": "computeSlotIndex",
            "host_id": "nodeIndex",
        },
    ),
)
"""The same fields, under the names that each version of the structure has for them."""

_ASKED_MANY: tuple[tuple[str, Callable[[Any, Any], dict[str, Any]]], ...] = (
    ("row_remap", _remapped),
    ("platform", _platform),
    ("fabric", nvlink.fabric),
)
"""Facts of a card that come several with one call, and what they are called together."""


def _compute_mode(number: int) -> str:
    return _COMPUTE_MODES[number] if number < len(_COMPUTE_MODES) else f"unknown ({number})"


def _members(words: Any) -> list[int]:
    """Give the numbers of the bits that are set in an array of 64-bit words."""
    whole = sum(word << (64 * place) for place, word in enumerate(words))
    return [bit for bit in range(whole.bit_length()) if whole >> bit & 1]
