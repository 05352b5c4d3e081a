"""NVLink as NVIDIA's library tells of it: what a card is linked to, and the fabric it is part of.

Sources: NVML API Reference Guide, "NvLink Methods" and "Fabric Info"; Fabric Manager User Guide
(what the states mean to CUDA).
"""

from __future__ import annotations

import ctypes
import uuid
from typing import Any

from xce_nodeagent.host.nvanswer import ask, pci_address

_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}  # 0: there is no fabric
_UNHEALTHY = 2  # NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY
_TYPES = {0: "gpu", 1: "npu", 2: "switch"}
_HIDDEN = "ff:ff"  # the bus and device of a switch that a virtual machine may not see


def peers(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    """Give the active links of a card, counted by what is at their other end.

    Each has `type` (`gpu`, `switch`, `npu`, or empty where that is not told), `address` (a PCI
    address; empty where that is hidden) and `count`. Raise NVMLError where no link can be asked.
    """
    counts: dict[tuple[str, str], int] = {}
    refused: Exception | None = None
    answered = False
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active = nvml.nvmlDeviceGetNvLinkState(handle, link)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise
            refused = refused or error
            # Beyond its links the number is invalid.
            if error.value in (
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            ):
                break
            continue
        answered = True
        if active:
            end = _end(nvml, handle, link)
            counts[end] = counts.get(end, 0) + 1
    if refused is not None and not answered:
        raise refused
    return [
        {"type": kind, "address": address, "count": counts[kind, address]}
        for kind, address in sorted(counts)
    ]


def _end(nvml: Any, handle: Any, link: int) -> tuple[str, str]:
    """Give type and address of what a link leads to, as far as both are told."""
    told: dict[str, Any] = {}
    ask(nvml, told, "type", nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    ask(nvml, told, "end", lambda: str(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
    if "lost" in told:
        raise nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)
    address = pci_address(told.get("end", ""))
    return _TYPES.get(told.get("type", -1), ""), "" if _HIDDEN in address else address


def fabric(nvml: Any, handle: Any) -> dict[str, Any]:
    """Give `fabric_state`, and once it is completed `fabric_cluster` and `fabric_clique`.

    `fabric_fault` says what went wrong where something did. Nothing is told of a card that is part
    of no fabric. The structure's newest version that the library knows is used.
    """
    told = _asked(nvml, handle)
    state = _STATES.get(told.state)
    if state is None:
        return {}
    facts: dict[str, Any] = {"fabric_state": state}
    if state != "completed":
        return facts
    if told.status != nvml.NVML_SUCCESS:
        return facts | {"fabric_fault": str(nvml.NVMLError(told.status))}
    if getattr(told, "healthSummary", 0) == _UNHEALTHY:
        facts["fabric_fault"] = "it is unhealthy"
    cluster = str(uuid.UUID(bytes=bytes(told.clusterUuid)))
    return facts | {"fabric_cluster": cluster, "fabric_clique": told.cliqueId}


def _asked(nvml: Any, handle: Any) -> Any:
    for version in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        told = getattr(nvml, version)()
        try:
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(told))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                break
            if error.value != nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
                raise
        else:
            return told
    told = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(told))
    return told
