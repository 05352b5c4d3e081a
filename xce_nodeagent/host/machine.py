"""Host: files below a root, and whether this is the machine that we run on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Host:
    """A machine to look at.

    `root` is `/` for this machine, else a folder with a recorded `sys`, `proc` and `dev`.
    `probe` asks a vendor's library in a helper process (see `privileged/ops.py`, Probe): it is
    given by whoever has helpers, and None where there are none. It returns (state, reason, facts).

    `held_ports` are the ports that jobs hold now, kept up to date by whoever has a ledger: who
    listens on them is no foreigner.
    """

    def __init__(
        self,
        root: str | Path = "/",
        *,
        probe: Callable[[str], tuple[str, str, dict[str, Any]]] | None = None,
        simulate: str = "",
        device_directory: str = "/dev/xce-sim",
        port_range: tuple[int, int] | None = None,
    ) -> None:
        self.root = Path(root)
        self.live = self.root == Path("/")
        self.probe = probe
        self.simulate = simulate
        self.device_directory = device_directory
        self.port_range = port_range
        self.held_ports: frozenset[int] = frozenset()

    def path(self, name: str) -> Path:
        """Give the path of a file of the machine, such as `/sys/class/net`, below the root."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """Give the stripped text of a small file; None when it is absent or cannot be read.

        sysfs answers some attributes with an error (`speed` of a link that is down: EINVAL); to
        discovery that is the same as an attribute that is absent.
        """
        try:
            return self.path(name).read_text("utf-8", "replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """Give the whole number in a small file; None when there is none."""
        text = self.read(name)
        try:
            return int(text, 0) if text is not None else None
        except ValueError:
            return None

    def names(self, name: str) -> tuple[str, ...]:
        """Give the names in a folder, sorted; nothing when it is absent."""
        try:
            return tuple(sorted(os.listdir(self.path(name))))
        except OSError:
            return ()

    def real(self, name: str) -> str | None:
        """Follow a link as sysfs makes them, without leaving the root; None when it is broken.

        The result is a path of the machine (it starts with `/`), not of the folder that it was
        recorded to.
        """
        path = self.path(name)
        try:
            resolved = path.resolve(strict=True)
            return "/" + str(resolved.relative_to(self.root.resolve())).lstrip("/")
        except (OSError, ValueError, RuntimeError):
            return None

    def boot_id(self) -> str:
        """Give the id of this boot (proc(5), /proc/sys/kernel/random/boot_id)."""
        return self.read("/proc/sys/kernel/random/boot_id") or "unknown"

    def node(self) -> str:
        """Give the host's name without its domain."""
        return (self.read("/proc/sys/kernel/hostname") or "unknown").partition(".")[0]
