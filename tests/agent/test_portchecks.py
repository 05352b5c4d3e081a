"""What doctor says of the port range, on written machines and in a network of the test's own."""

from __future__ import annotations

import ctypes
import re
import socket
import threading

import pytest

from xce_nodeagent.daemon import portchecks
from xce_nodeagent.host import Host

CLONE_NEWNET = 0x40000000
SYSCTL = "proc/sys/net/ipv4"


@pytest.fixture
def machine(tmp_path):
    """A machine with these numbers; "" is a file that is not there."""

    def write(chosen, reserved="", unprivileged="1024", ports=(20_000, 20_099)):
        folder = tmp_path / SYSCTL
        folder.mkdir(parents=True)
        for name, text in (
            ("ip_local_port_range", chosen),
            ("ip_local_reserved_ports", reserved),
            ("ip_unprivileged_port_start", unprivileged),
        ):
            if text:
                (folder / name).write_text(f"{text}\n", "ascii")
        return Host(tmp_path, port_range=ports)

    return write


@pytest.mark.parametrize(
    ("chosen", "reserved", "told"),
    [
        ("32768\t60999", "", ""),
        ("20100\t60999", "", ""),
        ("1024\t19999", "", ""),
        ("20050\t60999", "", "20050-20099"),
        ("1024\t20000", "", "20000"),
        ("1024\t65535", "", "20000-20099"),
        ("1024\t65535", "20000-20099", ""),
        ("1024\t65535", "8080,20000-20049,20050,20051-30000", ""),
        ("1024\t65535", "20010-20019", "20000-20009,20020-20099"),
        ("", "", ""),
        ("rubbish", "rubbish,-,9-,99999999", ""),
        ("60999\t32768", "", ""),
    ],
)
def test_it_names_the_ports_that_the_kernel_gives_to_others(machine, chosen, reserved, told):
    (check,) = portchecks.checks(machine(chosen, reserved))
    assert check.name == "ports"
    assert check.state == ("warning" if told else "ok")
    found = re.search(r"the kernel gives (\S+) to whoever connects", check.text)
    assert (found[1] if found else "") == told


def test_the_remedy_keeps_what_is_reserved_already(machine):
    (check,) = portchecks.checks(machine("1024\t65535", "8080,9000-9010"))
    assert "ip_local_reserved_ports=8080,9000-9010,20000-20099`" in check.remedy


def test_ports_of_root_are_told(machine):
    (check,) = portchecks.checks(machine("32768\t60999", ports=(1_000, 1_029)))
    assert check.state == "warning"
    assert "cannot bind 1000-1023" in check.text
    assert "ip_unprivileged_port_start" in check.remedy


def test_without_a_range_there_is_nothing_to_say(machine):
    assert portchecks.checks(machine("1024\t65535", ports=None)) == []


@pytest.mark.needs("root", "netns")
def test_the_kernel_does_what_is_said_of_it():
    """Where doctor warns, a port of the range is given to a stranger; after its remedy none is."""
    found = []

    def chosen_by_the_kernel(times):
        """Bind so often to port 0, and keep all of it, so that each is another port."""
        sockets = [socket.socket() for _ in range(times)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = {one.getsockname()[1] for one in sockets}
        for one in sockets:
            one.close()
        return ports

    def look():
        assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
        host = Host(port_range=(21_710, 21_719))
        with open(f"/{SYSCTL}/ip_local_port_range", "w", encoding="ascii") as file:
            file.write("21700 21739")
        (before,) = portchecks.checks(host)
        found.append((before, chosen_by_the_kernel(20)))
        command = re.search(r"sysctl -w (\S+)=([\d,-]+)`", before.remedy)
        with open(f"/proc/sys/{command[1].replace('.', '/')}", "w", encoding="ascii") as file:
            file.write(command[2])
        (after,) = portchecks.checks(host)
        found.append((after, chosen_by_the_kernel(20)))

    thread = threading.Thread(target=look)  # a namespace is a thread's
    thread.start()
    thread.join()
    (before, given), (after, kept) = found
    managed = set(range(21_710, 21_720))
    assert (before.state, bool(given & managed)) == ("warning", True)
    assert (after.state, kept & managed) == ("ok", set())


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_doctor_shows_it(agent):
    checks = {check["name"]: check for check in agent.call("Doctor")["checks"]}
    assert checks["ports"]["text"].startswith("20000-20999: ")
