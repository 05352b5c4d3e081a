"""A machine in QEMU: two NUMA nodes, a PCIe switch on the second one, and slots to plug into."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT_BUS = 0x40
"""The number of the host bridge that is said to be on NUMA node 1."""

_ARGUMENTS = f"""
    -machine q35,accel=tcg -cpu max -smp 2,sockets=2 -m 1024 -nodefaults -no-user-config -no-reboot
    -display none -global ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off
    -object memory-backend-ram,id=m0,size=512M -object memory-backend-ram,id=m1,size=512M
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1
    -device pcie-root-port,id=near,bus=pcie.0,chassis=1,slot=1
    -device pxb-pcie,id=far,bus=pcie.0,bus_nr={ROOT_BUS},numa_node=1
    -device pcie-root-port,id=door,bus=far,chassis=2,slot=2
    -device x3130-upstream,id=up,bus=door
    -device xio3130-downstream,id=left,bus=up,chassis=3,slot=3
    -device xio3130-downstream,id=right,bus=up,chassis=4,slot=4
""".split()


class Machine:
    """Started, with its two lines: to QEMU, and to what runs inside."""

    def __init__(self, folder: Path, kernel: Path, initramfs: Path, patience: float) -> None:
        self._patience = patience
        self.log = folder / "console"
        lines = []
        for name in ("qmp", "guest"):
            opened = socket.socket(socket.AF_UNIX)
            opened.bind(str(folder / name))
            opened.listen(1)
            opened.settimeout(patience)
            lines.append(opened)
        self._process = subprocess.Popen(
            ["qemu-system-x86_64", *_ARGUMENTS, "-kernel", kernel, "-initrd", initramfs,
             "-append", "console=ttyS0 quiet panic=-1 pcie_ports=native",
             "-chardev", f"file,id=console,path={self.log}", "-serial", "chardev:console",
             "-chardev", f"socket,id=guest,path={folder / 'guest'}", "-serial", "chardev:guest",
             "-qmp", f"unix:{folder / 'qmp'}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._open: list[Any] = [*lines, self._process.stdout]
        self._qmp, self._guest = (self._line(opened) for opened in lines)
        self._read(self._qmp)
        self.ask("qmp_capabilities")

    def _line(self, opened: socket.socket) -> Any:
        try:
            found, _ = opened.accept()
        except TimeoutError:
            self._ended("it does not begin")
        found.settimeout(self._patience)
        line = found.makefile("rw", encoding="utf-8", errors="replace")
        self._open += [line, found]
        return line

    def _read(self, line: Any) -> dict[str, Any]:
        try:
            text = line.readline()
        except ConnectionError:
            text = ""
        if not text:
            self._ended("it has ended")
        found: dict[str, Any] = json.loads(text)
        return found

    def _ended(self, what: str) -> NoReturn:
        self._process.kill()
        said = self._process.stdout.read() if self._process.stdout else ""
        console = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        self.close()
        raise RuntimeError(f"{what}: {said}{console[-3000:]}")

    def ask(self, command: str, **arguments: Any) -> Any:
        """Have QEMU do something; give its answer."""
        self._qmp.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._qmp.flush()
        while True:
            answer = self._read(self._qmp)
            if "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def order(self, **what: Any) -> None:
        """Have the guest do something."""
        self._guest.write(json.dumps(what) + "\n")
        self._guest.flush()

    def tell(self) -> dict[str, Any]:
        """Give what the guest says next."""
        return self._read(self._guest)

    def until(self, wanted: Any) -> dict[str, Any]:
        """Give the first NICs that are as wanted; each look must be what a cold one finds."""
        seen: list[Any] = []
        began = time.monotonic()
        while time.monotonic() - began < self._patience:
            told = self.tell()
            seen.append(told)
            if told.get("did"):
                raise RuntimeError(told["did"])
            if "nics" in told:
                assert told["cold"], seen
                if wanted(told["nics"]):
                    return told["nics"]
        raise AssertionError(seen)

    def address(self, name: str) -> str:
        """Give where a device is, as QEMU has it."""
        todo = list(self.ask("query-pci"))
        while todo:
            one = todo.pop()
            if one.get("qdev_id") == name:
                return f"0000:{one['bus']:02x}:{one['slot']:02x}.{one['function']}"
            todo += one.get("devices", ())
            todo += one.get("pci_bridge", {}).get("devices", ())
        raise KeyError(name)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for one in self._open:
            with contextlib.suppress(OSError):  # what was not sent is not sent
                one.close()
