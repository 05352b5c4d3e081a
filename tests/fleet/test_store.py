"""Which store is read, and what is said when it refuses."""

from __future__ import annotations

import time
from random import Random

import etcds
import pytest

from xce_nodeagent.cli.fleet import access, store
from xce_nodeagent.cli.fleet.block import block_of
from xce_nodeagent.cli.fleet.settings import settings as read
from xce_nodeagent.errors import BadConfig, Upstream
from xce_nodeagent.upstream import etcderror
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.watcher import State, Watcher


def configured(folder, text: str = ""):
    file = folder / "config.toml"
    file.write_text(f'[upstream.etcd]\nendpoints = ["http://127.0.0.1:1"]\n{text}')
    return read({"XCE_NODEAGENT_CONFIG": str(file)}, None, ())


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (etcderror.Unreachable("x: away"), "see that it runs"),
        (etcderror.Unreachable("x: it expired", certificate=True), "look at ca, cert and key"),
        (etcderror.Unauthenticated("x: who?"), "look at user and password_file"),
        (etcderror.Denied("x: no"), "what is below /xce/v1/"),
        (etcderror.OtherCluster("x: another", found=7), "look at endpoints and cluster_id"),
        (etcderror.NoLeader("x: no leader"), "more than half of etcd's members"),
        (etcderror.Garbage("x: not etcd"), "are to be client URLs of etcd"),
        (etcderror.StaleToken("x: invalid auth token"), "look at user and password_file"),
        (etcderror.NamedCertificate("x: no"), "whose subject has no CN"),
        (etcderror.EtcdError("x: what it never said"), "see that it runs"),
    ],
)
def test_what_is_refused_names_the_place_the_reason_and_what_to_do(
    tmp_path, error: etcderror.EtcdError, remedy: str
) -> None:
    settings = configured(tmp_path)
    told = access.refused(settings, error)
    assert (told.code, told.exit_status) == ("upstream", 75)
    assert told.message.startswith(f"the store at http://127.0.0.1:1: {error.reason}; ")
    assert remedy in told.message
    assert told.details["endpoints"] == ["http://127.0.0.1:1"]


def test_who_follows_a_store_that_never_answers_is_told_so_at_the_deadline(tmp_path) -> None:
    (port,) = etcds.free_ports(1)
    settings = configured(tmp_path)
    client = Client([f"http://127.0.0.1:{port}"], Random(1))  # noqa: S311  # a test
    with Watcher(client, settings.keys) as watcher:
        end = time.monotonic() + 30
        while watcher.state.phase != "away":
            assert time.monotonic() < end
            time.sleep(0.01)
        followed = store.Followed(settings, watcher, 0.1)
        with pytest.raises(Upstream, match=r"nothing could be read in 0\.1 s: ") as raised:
            followed.next(None, 10)
    assert "Connection refused; see that it runs" in raised.value.message


def test_endpoints_of_the_command_line_go_first(tmp_path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[upstream.etcd]\nendpoints = ["http://127.0.0.1:1"]\nprefix = "/p/"\n')
    found = read({}, str(file), ("http://127.0.0.1:2", "http://127.0.0.1:3/"))
    assert found.etcd.endpoints == ("http://127.0.0.1:2", "http://127.0.0.1:3")
    assert found.keys.prefix == b"/p/"
    # What the configuration refuses, is refused here as well: no password in plain to others.
    file.write_text(
        f'[upstream.etcd]\nendpoints = ["https://a:1"]\nuser = "u"\npassword_file = "{file}"\n'
    )
    with pytest.raises(BadConfig, match="--endpoint: expected https"):
        read({}, str(file), ("http://198.51.100.7:2379",))


def test_a_password_that_cannot_be_read_is_a_fault_of_the_configuration(tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("shh-not-to-be-told")
    secret.chmod(0o644)
    settings = configured(tmp_path, f'user = "u"\npassword_file = "{secret}"\n')
    with (
        pytest.raises(BadConfig, match="everybody can get at the secret") as raised,
        access.asking(settings, 5) as asked,
    ):
        asked._credentials()
    assert "shh" not in str(raised.value)


@pytest.mark.parametrize(
    ("told", "name", "block"),
    [
        ("", "r1-n1", ""),
        ("^(r[0-9]+)-", "r12-n1", "r12"),
        ("^(r[0-9]+)-", "login1", ""),
        ("^(?:x(y))?", "z", ""),
        ("attribute:rack", "r1-n1", "7"),
        ("attribute:weather", "r1-n1", ""),
    ],
)
def test_a_switch_block_is_found_as_the_configuration_says(told: str, name: str, block) -> None:
    assert block_of(told)(name, {"rack": 7}) == block


def test_only_a_store_that_is_away_makes_a_fleet_out_of_date() -> None:
    assert store.outdated(State(phase="following")) == ""
    assert store.outdated(State(phase="reading")) == ""
    told = store.outdated(State(phase="away", since=1.7e9, reason="http://a: refused"))
    assert told.startswith("the store is away since 2023-11-1")
    assert told.endswith(": http://a: refused")
