"""Host: files below a root, and whether this is the machine that we run on."""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from xce_nodeagent.errors import exhausted
from xce_nodeagent.host.memory import Memory
from xce_nodeagent.host.slow import Hung, Slow
from xce_nodeagent.host.tree import Tree
from xce_nodeagent.model.config import NicConfig, RailsConfig
from xce_nodeagent.model.share import MpsConfig
from xce_nodeagent.model.site import Reported, Site

PAGE = 4096
"""What an attribute of sysfs has at most."""

LIMIT = 1 << 24
"""Bytes that are read of a file: a recorded machine may have one without an end."""

_BLANK = " \t\n\v\f\r\0"
"""What is not part of a text at its ends; some tools pad what they record with NULs."""

_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Host:
    """A machine to look at.

    `root` is `/` for this machine, else a folder with a recorded `sys`, `proc` and `dev`; nothing
    is read outside of it, whatever its links say. `live` says that this is the machine we run on:
    what is no file (netlink, a vendor's library) is asked only then, by way of `answer`.
    `probe` asks a vendor's library in a helper process (see `privileged/ops.py`, Probe): it is
    given by whoever has helpers, and None where there are none. It returns (state, reason, facts).

    `held_ports` are the ports that jobs hold now, kept up to date by whoever has a ledger: who
    listens on them is no foreigner.

    `site` says where instances are declared, None for nowhere; it is about this machine, whatever
    the root. `report` gives what the site's reporter said last, and is None where there is none.
    """

    def __init__(
        self,
        root: str | Path = "/",
        *,
        live: bool | None = None,
        probe: Callable[[str], tuple[str, str, dict[str, Any]]] | None = None,
        simulate: str = "",
        device_directory: str = "/dev/xce-sim",
        port_range: tuple[int, int] | None = None,
        nic: NicConfig | None = None,
        rails: RailsConfig | None = None,
        mps: MpsConfig | None = None,
    ) -> None:
        self.root = Path(root)
        self.live = self.root == Path("/") if live is None else live
        self._tree = Tree(str(self.root))
        self.memory: Memory | None = None
        self._slow = Slow()
        self.probe = probe
        self.simulate = simulate
        self.device_directory = device_directory
        self.port_range = port_range
        self.nic = nic or NicConfig()
        self.rails = rails or RailsConfig()
        self.mps = mps or MpsConfig()
        self.held_ports: frozenset[int] = frozenset()
        self.site: Site | None = None
        self.report: Callable[[], Reported] | None = None

    def path(self, name: str) -> Path:
        """Give the path of a file of the machine, such as `/sys/class/net`, below the root."""
        return self.root / name.lstrip("/")

    def remembering(self, memory: Memory) -> Host:
        """Give this host as one look sees it: with a memory, so that nothing is read twice."""
        host = copy.copy(self)
        host.memory = memory
        return host

    def read(self, name: str, limit: int = LIMIT) -> str | None:
        """Give the stripped text of a small file; None when it is absent or cannot be read.

        `limit` is for files that the kernel makes longer with each CPU: so many bytes will do.

        sysfs answers some attributes with an error (`speed` of a link that is down: EINVAL); to
        discovery that is the same as an attribute that is absent. Want of descriptors or memory is
        no absence: raise OSError then, or all hardware would seem to have gone.
        """
        if self.memory is None or limit != LIMIT:
            return self._read(name, limit)
        return self.memory.known("r", name, lambda: self._read(name, limit))

    def _read(self, name: str, limit: int) -> str | None:
        try:
            fd = self._tree.open(name, os.O_RDONLY)
        except OSError as error:
            _absent(error)
            return None
        try:
            data = part = os.read(fd, PAGE)
            while part and len(data) < limit:
                part = os.read(fd, min(limit, 16 * PAGE))
                data += part
        except OSError as error:
            _absent(error)
            return None
        finally:
            os.close(fd)
        return data[:limit].decode("utf-8", "replace").strip(_BLANK)

    def read_slowly(self, names: Iterable[str]) -> Mapping[str, str | Hung | None]:
        """Read files for which drivers ask their cards: Hung in the place of what takes too long.

        None of them is remembered: what comes late is of a look that is over.
        """
        if not self.live:
            return {name: self.read(name) for name in names}
        return self._slow.read({name: partial(self._read, name, LIMIT) for name in names})

    def number(self, name: str) -> int | None:
        """Give the whole number in a small file; None when there is none.

        The kernel's have 64 bits at most. What is longer is rubbish, and no JSON could hold it.
        """
        text = self.read(name)
        try:
            number = int(text, 0) if text is not None else None
        except ValueError:
            return None
        return number if number is None or -(1 << 63) <= number < 1 << 64 else None

    def names(self, name: str) -> tuple[str, ...]:
        """Give the names in a folder, sorted; nothing when it is absent. Raises as `read` does."""
        if self.memory is None:
            return self._names(name)
        return self.memory.known("n", name, lambda: self._names(name))

    def _names(self, name: str) -> tuple[str, ...]:
        try:
            fd = self._tree.open(name, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            _absent(error)
            return ()
        try:
            return tuple(sorted(os.listdir(fd)))
        except OSError as error:
            _absent(error)
            return ()
        finally:
            os.close(fd)

    def real(self, name: str) -> str | None:
        """Follow a link as sysfs makes them, without leaving the root; None when it is broken.

        The result is a path of the machine (it starts with `/`), not of the folder that it was
        recorded to. Raises as `read` does.
        """
        if self.memory is None:
            return self._real(name)
        return self.memory.known("l", name, lambda: self._real(name))

    def _real(self, name: str) -> str | None:
        try:
            return self._tree.where(name)
        except OSError as error:
            _absent(error)
            return None

    def derived(self, folder: str, make: Callable[[], Answer]) -> Answer:
        """Give what is made of the files in a folder; it is kept where they are (see `memory`)."""
        return make() if self.memory is None else self.memory.known("d", folder, make)

    def state(self, folder: str, make: Callable[[], Answer]) -> Answer:
        """Give what is made of how a device is; kept until the kernel tells of it (see `memory`).

        `folder` is the device's in its class.
        """
        return make() if self.memory is None else self.memory.known("s", folder, make)

    def answer(self, name: str, ask: Callable[[], Answer], kind: Any) -> Answer | None:
        """Give what is no file: asked now of this machine, else as it was recorded.

        A recorded machine has it as JSON in `<name>.json`, beside `sys`, `proc` and `dev`. None
        where it has not, or where that is no such answer. Raises what `ask` raises.
        """
        if self.live:
            return ask()
        text = self.read(f"/{name}.json")
        if not text:
            return None
        try:
            answer: Answer = msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            _log.warning("%s is left out: %s", self.path(f"{name}.json"), error)
            return None
        return answer

    def boot_id(self) -> str:
        """Give the id of this boot (proc(5), /proc/sys/kernel/random/boot_id)."""
        return self.read("/proc/sys/kernel/random/boot_id") or "unknown"

    def uptime(self) -> float:
        """Give the seconds since the boot: nobody can set them, and a suspend counts."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def node(self) -> str:
        """Give the host's name without its domain."""
        return (self.read("/proc/sys/kernel/hostname") or "unknown").partition(".")[0]


def _absent(error: OSError) -> None:
    """Take an error for an absence; raise it where it tells only of want."""
    if exhausted(error):
        raise error
