"""Where a cloud describes the PCIe tree that it hides: the file that NCCL would read by itself.

NCCL takes NCCL_TOPO_FILE, which images of some clouds set in /etc/nccl.conf, and else the file of
NVIDIA's topology daemon, where there is one (NCCL documentation, "NCCL_TOPO_FILE").
"""

from __future__ import annotations

import os
import re
import stat

from xce_nodeagent.errors import exhausted
from xce_nodeagent.host import trust
from xce_nodeagent.host.machine import Host
from xce_nodeagent.model.virtual import SIZE_LIMIT, Virtual, parse

CONFIG = "/etc/nccl.conf"
DEFAULT = "/var/run/nvidia-topologyd/virtualTopology.xml"


def read(host: Host, config: str = CONFIG, default: str = DEFAULT) -> Virtual:
    """Give what the file tells; nothing where there is none."""
    return host.answer("virtual-topology", lambda: _look(config, default), Virtual) or Virtual()


def _look(config: str, default: str) -> Virtual | None:
    """Look on this machine. None where there is no file: most have none."""
    path = config
    try:
        path = _named(config) or default
        return Virtual(path, parse(_data(path)))
    except FileNotFoundError:
        return None if path == default else Virtual(path, fault=f"{path}: it is not there")
    except trust.Shared as shared:
        why = f"others than root can write to {shared.path}"
        return Virtual(path, fault=f"{path} is not gone by: {why}")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and exhausted(error):
            raise
        return Virtual(path, fault=f"{path}: {getattr(error, 'strerror', None) or error}")


def _named(config: str) -> str:
    """Give the file that NCCL's configuration names; of several lines the last counts."""
    try:
        text = _data(config).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    found = re.findall(r"^[ \t]*NCCL_TOPO_FILE[ \t]*=[ \t]*(/[^\s#]+)", text, re.MULTILINE)
    return str(found[-1]) if found else ""


def _data(path: str) -> bytes:
    """Read a file that root alone decides on."""
    real, _ = trust.follow(path)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(real, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no file")
        if found.st_uid != 0 or found.st_mode & trust.SHARED:
            raise trust.Shared(real, found)
        data = file.read(SIZE_LIMIT + 1)
    if len(data) > SIZE_LIMIT:
        raise ValueError(f"expected at most {SIZE_LIMIT} bytes")
    return data
