"""A compromised agent at the binder: it sends whatever it likes, and gets nothing but its table."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.label import Label
from xce_nodeagent.privileged.ops import Device, Rule

pytestmark = [pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf"), pytest.mark.timeout(120)]

READ_WRITE = 6
FORBIDDEN = {
    "memory": Device("c", 1, 1),
    "null": Device("c", 1, 3),
    "disk": Device("b", 8, 0),
    "disk number as a character device": Device("c", 8, 0),
    "card number as a block device": Device("b", 195, 0),
    "virtual machines": Device("c", 10, 232),
    "fuse": Device("c", 10, 229),
    "loop": Device("b", 7, 0),
    "terminal": Device("c", 5, 0),
    "no driver": Device("c", 4000, 0),
    "not a number": Device("c", -1, -1),
    "too large a number": Device("c", 1 << 40, 1 << 40),
    "local major that was not made": Device("c", 127, 77),
}
PATHS = {
    "root of the file system": "/",
    "etc": "/etc",
    "the hierarchy itself": "{mount}",
    "above the roots": "{top}",
    "beside the roots": "{outside}",
    "below what is beside": "{outside}/below",
    "the home itself": "{home}",
    "the other root itself": "{other}",
    "up and out": "{home}/../outside",
    "up and out, of the other root": "{other}/../outside",
    "up in the middle": "{other}/x/../../outside",
    "doubled slash": "{home}//../outside",
    "a dot": "{home}/./..",
    "NUL": "{home}/a\0/../../outside",
    "very long": "{home}/" + "a" * 5000,
    "very deep": "{other}" + "/a" * 2000,
    "a file of the home": "{home}/cgroup.procs",
    "a file below a file": "{home}/cgroup.procs/x",
    "empty": "",
    "relative": "etc",
    "the name of the root and more": "{home}-not",
    "init's": "/proc/1/root/etc",
}


def marked(cgroup):
    return Label.read(os.getxattr(cgroup, "trusted.xce.binding")).mark


def recovers(captured):
    """After whatever it was: the next binder takes over, fences, and takes the fence away."""
    helper = captured.binder()
    job = captured.home / "job-after"
    assert helper.ask(captured.bind(job)) == {"type": "done"}
    assert marked(job) == "1\na"
    gone = helper.ask(ops.Unbind("1\na", captured.ref(job), remove=True))
    assert gone is not None
    assert gone["gone"] is True
    helper.close()


@pytest.mark.parametrize("name", PATHS)
def test_no_path_leads_out_of_the_roots(captured, name, mount):
    helper = captured.binder()
    path = PATHS[name].format(
        mount=mount, top=captured.top, outside=captured.outside,
        home=captured.home, other=captured.other,
    )  # fmt: skip
    before = captured.surroundings()
    ref, pidfd = captured.ref(path), os.pidfd_open(captured.bystander.pid)
    for request, fds in (
        (captured.bind(path, make=True, populated=True), ()),
        (captured.bind(path, make=False, populated=True), ()),
        (ops.Unbind("1\na", ref, remove=True), ()),
        (ops.Verify("1\na", ref, ops.pack(())), ()),
        (ops.Join("1\na", ref, captured.bystander.pid), (pidfd,)),
    ):
        answer = helper.ask(request, *fds)
        if answer is not None and answer.get("type") not in ("unbound", "verified"):
            assert answer["code"] in ("bad_cgroup", "enforcement", "internal"), (request, answer)
        if answer is None or answer.get("code") == "internal":
            helper = captured.binder()
    os.close(pidfd)
    assert captured.surroundings() == before
    recovers(captured)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_device_that_no_job_is_fenced_from_is_neither_managed_nor_granted(captured, name):
    """Managed, it would be denied to jobs; granted on cgroup v1, it could be opened to one."""
    device = FORBIDDEN[name]
    before = captured.surroundings()
    helper = captured.binder()
    assert helper.ask(ops.Manage((*captured.cards(), device))) is None
    helper = captured.binder()
    job = captured.home / "job-1"
    assert helper.ask(captured.bind(job, Rule(device, READ_WRITE))) is None
    assert not job.exists()
    assert captured.logged().count("violation") == 2
    assert captured.surroundings() == before
    recovers(captured)


def test_an_access_that_is_none_is_not_granted(captured):
    card = captured.binder() and captured.cards()[0]
    for access in (0, 8, 255, -1, 1 << 40):
        helper = captured.binder()
        answer = helper.ask(captured.bind(captured.home / "job-1", Rule(card, access)))
        assert answer is None, access
        assert not (captured.home / "job-1").exists()


def nested(depth):
    return b"\x91" * depth + b"\x90"


GARBAGE = {
    "nothing that is msgpack": b"\xc1",
    "random": bytes(range(256)) * 16,
    "the role of another helper": msgspec.msgpack.encode(ops.Look()),
    "an answer": msgspec.msgpack.encode(ops.Done()),
    "an operation that is none": msgspec.msgpack.encode({"type": "run", "program": "/bin/sh"}),
    "wrong types": msgspec.msgpack.encode({"type": "bind", "mark": 7, "cgroup": {}, "grants": 1}),
    "another hierarchy": msgspec.msgpack.encode(
        {"type": "unbind", "mark": "x", "cgroup": ["cgroup3", "/"], "remove": True}
    ),
    "a device of no kind": msgspec.msgpack.encode(
        {"type": "manage", "devices": [{"type": "a", "major": 1, "minor": 1}]}
    ),
    "nested in a field": b"\x82\xa4type\xa4take\xa1x" + nested(100_000),
    "nested grants": b"\x85\xa4type\xa4bind\xa4mark\xa1x\xa6cgroup\x92\xa7cgroup2\xa1/\xa4make\xc3"
    b"\xa6grants" + nested(100_000),
    "a length that is not there": b"\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "text that is no UTF-8": b"\x81\xa4type\xa4\xff\xfe\xfd\xfc",
    "as long as the limit": b"\x81\xa4type\xda\xff\xff" + b"a" * 0xFFFF,
    "longer than the limit": b"\x90" * (ops.MESSAGE_LIMIT + 1),
}


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_request_ends_the_helper_alone(captured, name):
    before = captured.surroundings()
    helper = captured.binder()
    answer = helper.ask(GARBAGE[name])
    assert answer is None or answer["code"] == "internal"
    assert captured.process.poll() is None
    assert f"xce-binder[{helper.pid}]" in captured.logged()
    assert captured.surroundings() == before
    recovers(captured)


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
@pytest.mark.parametrize("count", [0, 2, 5, 253])
def test_join_takes_one_descriptor_and_no_other_number(captured, count):
    helper = captured.binder()
    job = captured.home / "job-1"
    assert helper.ask(captured.bind(job)) == {"type": "done"}
    pidfd = os.pidfd_open(captured.bystander.pid)
    request = ops.Join("1\na", captured.ref(job), captured.bystander.pid)
    assert helper.ask(request, *[pidfd] * count) is None
    os.close(pidfd)
    assert (job / "cgroup.procs").read_text("ascii") == ""
    helper = captured.binder()
    answer = helper.ask(ops.Unbind("1\na", captured.ref(job), remove=True))
    assert answer is not None


@contextlib.contextmanager
def descriptor(kind):
    """Open something that is no pidfd of an honest Join; give it, and the pid that is claimed."""
    if kind == "a folder":
        fd, pid = os.open("/", os.O_RDONLY), 1
    elif kind == "a pipe":
        fd, write = os.pipe()
        os.write(write, b"Pid:\t1\n")
        os.close(write)
        pid = 1
    elif kind == "a memory":
        fd, pid = os.memfd_create("Pid:\t1\nPid:\t1"), 1
    elif kind == "a pidfd of another process":
        fd, pid = os.pidfd_open(os.getpid()), 1
    else:
        end = socket.socket()
        # Closing it lasts as long as its owner likes, unless nobody closes it last.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        fd, pid = end.detach(), 1
    try:
        yield fd, pid
    finally:
        os.close(fd)


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
@pytest.mark.parametrize(
    "kind",
    ["a folder", "a pipe", "a memory", "a pidfd of another process", "a socket that lingers"],
)
def test_join_takes_no_descriptor_that_is_not_the_process(captured, kind):
    helper = captured.binder()
    job = captured.home / "job-1"
    assert helper.ask(captured.bind(job)) == {"type": "done"}
    with descriptor(kind) as (fd, pid):
        assert helper.ask(ops.Join("1\na", captured.ref(job), pid), fd) is None
    assert (job / "cgroup.procs").read_text("ascii") == ""
    assert "violation" in captured.logged()


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_no_job_gets_init_the_supervisor_a_helper_or_a_thread_of_the_kernel(captured):
    helper = captured.binder()
    job = captured.home / "job-1"
    assert helper.ask(captured.bind(job)) == {"type": "done"}
    ours = [captured.process.pid, *captured.children()]
    assert helper.pid in ours
    for pid in (1, 2, *ours):
        pidfd = os.pidfd_open(pid)
        answer = helper.ask(ops.Join("1\na", captured.ref(job), pid), pidfd)
        os.close(pidfd)
        assert answer is not None
        assert answer["code"] == "bad_request", (pid, answer)
    assert (job / "cgroup.procs").read_text("ascii") == ""


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_thread_of_a_process_is_not_moved_in_its_name(captured):
    """The kernel moves the whole process for a thread's number, and no check knows that number."""
    code = "import threading,sys;threading.Thread(target=sys.stdin.read).start();input()"
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE)
    try:
        threads = Path(f"/proc/{process.pid}/task")
        while len(list(threads.iterdir())) < 2:
            assert process.poll() is None
        thread = next(int(t.name) for t in threads.iterdir() if t.name != str(process.pid))
        try:
            pidfd = os.pidfd_open(thread, os.O_EXCL)  # PIDFD_THREAD, Linux 6.9
        except OSError:
            pytest.skip("this kernel has no descriptors of threads")
        helper = captured.binder()
        job = captured.home / "job-1"
        assert helper.ask(captured.bind(job)) == {"type": "done"}
        request = ops.Join("1\na", captured.ref(job), thread)
        answer = helper.ask(request, pidfd)
        os.close(pidfd)
        assert answer is None
        assert (job / "cgroup.procs").read_text("ascii") == ""
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_marks_hold_any_text_and_no_more_than_that(captured):
    helper = captured.binder()
    job = captured.home / "job-1"
    for mark in ("1\na", "\n\n\n", "$(id)`id`\0\x1b]0;x\x07", "x" * 4096):
        assert helper.ask(captured.bind(job, mark=mark)) == {"type": "done"}
        assert marked(job) == mark
        other = helper.ask(captured.bind(job, mark=f"{mark}"[:-1] + "?"))
        assert other is not None
        assert other["code"] == "conflict"
        answer = helper.ask(ops.Unbind(mark, captured.ref(job), remove=True))
        assert answer is not None
        assert not job.exists()
    assert helper.ask(captured.bind(job, mark="")) is None
    assert captured.binder().ask(captured.bind(job, mark="x" * 4097)) is None
    assert captured.binder().ask(captured.bind(job, mark="ä" * 2049)) is None
    for word in ("bound", "released"):  # what stands between a mark and its record
        assert captured.binder().ask(captured.bind(job, mark=f"1\na\n {word}\n")) is None
    assert not job.exists()


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_record_is_bytes_and_never_read_as_another_mark(captured):
    helper = captured.binder()
    job = captured.home / "job-1"
    for record in (b"\n bound\n2\nb", b"\n released\n", b"\0\xff" * 1000, b"x" * 57_344):
        assert helper.ask(captured.bind(job, record=record)) == {"type": "done"}
        label = Label.read(os.getxattr(job, "trusted.xce.binding"))
        assert label == Label("1\na", record)
    assert helper.ask(captured.bind(job, record=b"x" * 57_345)) is None
    helper = captured.binder()
    gone = helper.ask(ops.Unbind("1\na", captured.ref(job), remove=True))
    assert gone is not None
    assert gone["gone"] is True


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_it_ends_no_process_where_the_configuration_does_not_say_so(captured):
    """It could move any process into a job; by its own word it kills none."""
    helper = captured.binder()
    for path in (captured.home / "job-1", captured.outside, captured.home, captured.top):
        for what in ("term", "kill"):
            answer = helper.ask(ops.Kill("1\na", captured.ref(path), what))
            assert answer is not None
            assert answer["code"] == "not_permitted"
    assert captured.bystander.poll() is None


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_flood_and_repeated_takes_are_answered_in_order_and_change_nothing(captured):
    helper = captured.binder()
    first = helper.ask(ops.Take())
    before = captured.surroundings()
    many = tuple(captured.ref(f"/{number}") for number in range(2000))
    for _ in range(2000):
        assert helper.ask(ops.Take(known=many, agent=1)) == first
    assert captured.surroundings() == before
    assert captured.process.poll() is None
    recovers(captured)


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_what_it_can_do_is_what_the_page_says_and_no_more(captured):
    """It gives any managed card to any bound cgroup, stops managing, moves a process: no more.

    When this test fails because less can be done, say less in docs/threats.md.
    """
    helper = captured.binder()
    job, other = captured.home / "job-1", captured.other / "theirs"
    other.mkdir()
    cards = captured.cards()
    everything = [Rule(card, READ_WRITE) for card in cards]
    for path in (job, other):
        assert helper.ask(captured.bind(path, *everything, populated=True)) == {"type": "done"}
    pidfd = os.pidfd_open(captured.bystander.pid)
    joined = helper.ask(ops.Join("1\na", captured.ref(job), captured.bystander.pid), pidfd)
    os.close(pidfd)
    assert joined == {"type": "done"}
    (captured.outside / "cgroup.procs").write_text(str(captured.bystander.pid), "ascii")
    assert helper.ask(ops.Manage(())) == {"type": "done"}
    # A device that is managed no more is not granted either.
    assert helper.ask(captured.bind(job, everything[0])) is None
