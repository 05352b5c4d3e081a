"""A configuration is read whole or refused whole, with every fault at its place."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.model.config import SECTIONS, Config, parse


def test_an_empty_file_is_the_default():
    assert parse("", "c") == Config()


def test_every_key_that_is_documented_is_read():
    config = parse(
        """
[agent]
user = "batch"
cgroup_root = "/sys/fs/cgroup/x/"
cgroup_allowed_roots = ["/sys/fs/cgroup/a", "/sys/fs/cgroup/b"]
enforcement = "best-effort"
attempt_memory_seconds = 60
node = "n1"
[access]
prepare_uids = [0, 991]
[ports]
range = "20000-20999"
guard_root = "/sys/fs/cgroup/g"
[nic]
offer = ["0000:18:00.0", "eth*"]
reserve = ["mlx5_7"]
[environment]
visible_devices = "index"
[simulate]
profile = "dgx-h100"
device_directory = "/dev/xce-sim"
""",
        "c",
    )
    assert config.agent.cgroup_root == "/sys/fs/cgroup/x"
    assert config.agent.cgroup_allowed_roots == ("/sys/fs/cgroup/a", "/sys/fs/cgroup/b")
    assert config.access.prepare_uids == (0, 991)
    assert config.ports.range == (20000, 20999)
    assert config.nic.offer == ("0000:18:00.0", "eth*")
    assert config.nic.reserve == ("mlx5_7",)
    assert config.environment.visible_devices == "index"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("kill_grace_seconds = 2.5", "a whole number of seconds, 0 (SIGKILL at once) to 3600"),
        ("kill_grace_seconds = -1", "0 (SIGKILL at once) to 3600"),
        ('residents = "dcgm"', "expected a list of programs' names"),
        ('residents = ["dcgm", 7]', "entry 2, 7: expected"),
        ('residents = ["dcgm", ""]', "entry 2, '' (0 bytes): expected"),
        ('residents = ["dcgm", "nvidia-persistenced"]',
         "entry 2, 'nvidia-persistenced' (19 bytes): expected programs' names"),
    ],
)  # fmt: skip
def test_a_wrong_value_of_release_says_what_is_right(line, told):
    with pytest.raises(BadConfig) as caught:
        parse(f"[release]\n{line}\n", "c")
    assert told in caught.value.message
    assert "c:2: " in caught.value.message


def test_all_faults_are_told_at_once_each_with_its_line():
    text = """[agent]
user = "Root!"
enforcement = "maybe"
colour = "red"
[access]
prepare_uids = ["root"]
[prots]
range = "1-2"
[ports]
range = "9-3"
"""
    with pytest.raises(BadConfig) as caught:
        parse(text, "/etc/x.toml")
    lines = caught.value.message.splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "/etc/x.toml:2",
        "/etc/x.toml:3",
        "/etc/x.toml:4",
        "/etc/x.toml:6",
        "/etc/x.toml:7",
        "/etc/x.toml:10",
    ]
    assert caught.value.exit_status == 78


@pytest.mark.parametrize(
    "text",
    [
        "x = 1",
        "[agent]\ncgroup_root = '/'",
        "[agent]\ncgroup_root = 'a/b'",
        "[agent]\ncgroup_root = '/a/../b'",
        '[agent]\ncgroup_root = "/a\\nb"',
        '[agent]\nnode = "\\u001b[2J"',
        '[mps]\npipe_directory = "/run/a\\nLD_PRELOAD=/tmp/x"',
        '[upstream.file]\npath = "/a\\u202eb"',
        f"[agent]\nlibrary_seconds = {'1' * 5000}",
        f"[agent]\nlibrary_seconds = 0x{'f' * 5000}",
        f"[mps.shares]\nall = {1 << 63}",
        f"[nic]\noffer = {'[' * 900}{']' * 900}",
        "[agent]\nattempt_memory_seconds = true",
        "[agent]\nattempt_memory_seconds = -1",
        "[access]\nprepare_uids = [true]",
        "[access]\nprepare_uids = 0",
        "[ports]\nrange = '0-10'",
        "[ports]\nrange = '1-65536'",
        "[ports]\nrange = 5",
        "[nic]\noffer = 'eth0'",
        "[nic]\noffer = ['']",
        "[nic]\nreserve = ['eth0', 7]",
        "[nic]\nreserve = ['eth0 eth1']",
        "[simulate]\nprofile = '../etc'",
        "[agent",
        "agent = 1",
        "[agent]\nuser = 1\nuser = 2",
    ],
)
def test_what_is_wrong_is_refused(text):
    with pytest.raises(BadConfig):
        parse(text, "c")


@given(st.text())
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(BadConfig):
        assert isinstance(parse(text, "c"), Config)


def _value():
    return st.one_of(
        st.booleans().map(lambda b: str(b).lower()),
        st.integers().map(str),
        st.just('"x"'),
        st.just("[]"),
        st.just("[1, 'a']"),
        st.just("1.5"),
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted({key for _, _, keys in SECTIONS.values() for key in keys})),
            _value(),
        ),
        unique_by=lambda pair: pair[0],
    ),
    st.sampled_from(sorted(SECTIONS)),
)
def test_any_value_of_any_key_is_read_or_refused(pairs, section):
    text = f"[{section}]\n" + "\n".join(f"{key} = {value}" for key, value in pairs)
    with contextlib.suppress(BadConfig):
        assert isinstance(parse(text, "c"), Config)
