"""Which store is read, and what is said when it refuses."""

from __future__ import annotations

import pytest

from xce_nodeagent.cli.fleet import store
from xce_nodeagent.errors import BadConfig
from xce_nodeagent.upstream import etcderror
from xce_nodeagent.upstream.watcher import State


def configured(folder, text: str = ""):
    file = folder / "config.toml"
    file.write_text(f'[upstream.etcd]\nendpoints = ["http://127.0.0.1:1"]\n{text}')
    return store.settings({"XCE_NODEAGENT_CONFIG": str(file)}, None, ())


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (etcderror.Unreachable("x: away"), "see that it runs"),
        (etcderror.Unreachable("x: it expired", certificate=True), "look at ca, cert and key"),
        (etcderror.Unauthenticated("x: who?"), "look at user and password_file"),
        (etcderror.Denied("x: no"), "what is below /xce/v1/"),
        (etcderror.OtherCluster("x: another", found=7), "look at endpoints and cluster_id"),
        (etcderror.NoLeader("x: no leader"), "more than half of its members"),
        (etcderror.Garbage("x: not etcd"), "see that it runs"),
    ],
)
def test_what_is_refused_names_the_place_the_reason_and_what_to_do(
    tmp_path, error: etcderror.EtcdError, remedy: str
) -> None:
    settings = configured(tmp_path)
    told = store.refused(settings, error)
    assert (told.code, told.exit_status) == ("upstream", 75)
    assert told.message.startswith(f"the store at http://127.0.0.1:1: {error.reason}; ")
    assert remedy in told.message
    assert told.details["endpoints"] == ["http://127.0.0.1:1"]


def test_endpoints_of_the_command_line_go_first(tmp_path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[upstream.etcd]\nendpoints = ["http://127.0.0.1:1"]\nprefix = "/p/"\n')
    found = store.settings({}, str(file), ("http://127.0.0.1:2", "http://127.0.0.1:3/"))
    assert found.etcd.endpoints == ("http://127.0.0.1:2", "http://127.0.0.1:3")
    assert found.keys.prefix == b"/p/"
    # What the configuration refuses, is refused here as well: no password in plain to others.
    file.write_text(
        f'[upstream.etcd]\nendpoints = ["https://a:1"]\nuser = "u"\npassword_file = "{file}"\n'
    )
    with pytest.raises(BadConfig, match="--endpoint: expected https"):
        store.settings({}, str(file), ("http://198.51.100.7:2379",))


def test_a_password_that_cannot_be_read_is_a_fault_of_the_configuration(tmp_path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("shh-not-to-be-told")
    secret.chmod(0o644)
    settings = configured(tmp_path, f'user = "u"\npassword_file = "{secret}"\n')
    with (
        pytest.raises(BadConfig, match="everybody can get at the secret") as raised,
        store.asking(settings, 5) as asked,
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
    assert store.block_of(told)(name, {"rack": 7}) == block


def test_only_a_store_that_is_away_makes_a_fleet_out_of_date() -> None:
    assert store.outdated(State(phase="following")) == ""
    assert store.outdated(State(phase="reading")) == ""
    told = store.outdated(State(phase="away", since=1.7e9, reason="http://a: refused"))
    assert told.startswith("the store is away since 2023-11-1")
    assert told.endswith(": http://a: refused")
