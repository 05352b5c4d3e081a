"""Which devices the binder would not hear of: it ends over what no honest agent asks."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from xce_nodeagent.host import Host, declared
from xce_nodeagent.model.major import LOCAL_MAJORS
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import majors


def foreign(devices: AbstractSet[Device], host: Host, *, simulates: bool) -> Mapping[Device, str]:
    """Give those that are neither of a known driver nor declared by root, with why.

    Majors for local use are those of simulated nodes, which the binder made itself, if anything is
    simulated.
    """
    made = {device for device in devices if simulates and device.major in LOCAL_MAJORS}
    site = host.site
    return majors.foreign(
        devices,
        made=made,
        proc=Path("/proc"),
        declared=lambda: declared.devices(site) if site else (),
    )
