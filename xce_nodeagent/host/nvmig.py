"""MIG as NVIDIA's library tells of it: the GPU instances of a card and the slices in them.

Sources: NVML API Reference Guide, "Multi Instance GPU Management"; MIG User Guide. The library
lists GPU instances, and tells where one lies, to privileged callers only: a prober that is none
knows them by the slices (compute instances) in them.
"""

from __future__ import annotations

import ctypes
from typing import Any

from xce_nodeagent.host.nvanswer import ask, ask_many

SLICES_LIMIT = 128
"""Slices of a card that are asked about, whatever the library counts. The driver has numbers for
15 GPU instances of 8 compute instances each."""

_MIB = 20  # the library counts in MiB: so many bits


def slices(nvml: Any, card: Any) -> list[dict[str, Any]]:
    """Give a card's slices. Their indexes may have gaps: a slice that was taken away leaves one.

    One that cannot be asked is left out, and the others go on; a card that is lost raises.
    """
    found: list[dict[str, Any]] = []
    for index in range(min(nvml.nvmlDeviceGetMaxMigDeviceCount(card), SLICES_LIMIT)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                raise
            continue
        one: dict[str, Any] = {}
        ask(nvml, one, "uuid", nvml.nvmlDeviceGetUUID, mig)
        ask(nvml, one, "name", nvml.nvmlDeviceGetName, mig)
        ask(nvml, one, "memory_bytes", lambda h: nvml.nvmlDeviceGetMemoryInfo(h).total, mig)
        ask(nvml, one, "gpu_instance", nvml.nvmlDeviceGetGpuInstanceId, mig)
        ask(nvml, one, "compute_instance", nvml.nvmlDeviceGetComputeInstanceId, mig)
        ask_many(nvml, one, "attributes", _attributes, nvml, mig)
        if "gpu_instance" in one and "compute_instance" in one:
            ask_many(nvml, one, "placement", _placement, nvml, card, one)
        found.append(one)
    return found


def _attributes(nvml: Any, mig: Any) -> dict[str, Any]:
    told = nvml.nvmlDeviceGetAttributes_v2(mig)
    return {
        "multiprocessors": told.multiprocessorCount,
        "gpu_slices": told.gpuInstanceSliceCount,
        "compute_slices": told.computeInstanceSliceCount,
        "ofa_engines": told.sharedOfaCount,
    }


def _placement(nvml: Any, card: Any, one: dict[str, Any]) -> dict[str, Any]:
    """Give where a slice's GPU instance lies on the card, and where the slice lies in that."""
    gpu_instance = nvml.nvmlDeviceGetGpuInstanceById(card, one["gpu_instance"])
    told = nvml.nvmlGpuInstanceGetInfo(gpu_instance).placement
    one["placement"] = [told.start, told.size]
    inner = nvml.nvmlGpuInstanceGetComputeInstanceById(gpu_instance, one["compute_instance"])
    told = nvml.nvmlComputeInstanceGetInfo(inner).placement
    return {"compute_placement": [told.start, told.size]}


def gpu_instances(nvml: Any, card: Any) -> list[dict[str, Any]]:
    """Give a card's GPU instances, also those without a slice.

    Each has `gpu_instance placement memory_bytes multiprocessors gpu_slices`. Raise NVMLError
    where they may not be asked about.
    """
    found: list[dict[str, Any]] = []
    for profile in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            told = nvml.nvmlDeviceGetGpuInstanceProfileInfo(card, profile, version=1)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
                continue
            raise
        most = min(told.instanceCount, SLICES_LIMIT)
        handles = (nvml.c_nvmlGpuInstance_t * most)()
        count = ctypes.c_uint(most)
        nvml.nvmlDeviceGetGpuInstances(card, told.id, handles, ctypes.byref(count))
        for place in range(min(count.value, most)):
            about = nvml.nvmlGpuInstanceGetInfo(handles[place])
            found.append(
                {
                    "gpu_instance": about.id,
                    "placement": [about.placement.start, about.placement.size],
                    "memory_bytes": told.memorySizeMB << _MIB,
                    "multiprocessors": told.multiprocessorCount,
                    "gpu_slices": told.sliceCount,
                }
            )
    return found
