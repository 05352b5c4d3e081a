"""A store that has users: who may read a fleet, and who may delete from it."""

from __future__ import annotations

import contextlib

import etcds
import fleets
import pytest
from filled import COUNT, Filled

from xce_nodeagent.cli.main import main

SECRET = "shh-not-to-be-told"  # noqa: S105  # a test

pytestmark = pytest.mark.needs("etcd")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A store with a user that may read; as whom it is asked is the test's matter."""
    folder = tmp_path_factory.mktemp("guarded")
    with etcds.running() as etcd:
        store = Filled(etcd, folder)
        with contextlib.closing(store.client):
            for line in (
                f"user add root:{SECRET}", "role add root", "user grant-role root root",
                f"user add reader:{SECRET}", "role add reader",
                f"role grant-permission --prefix=true reader read {store.prefix}",
                "user grant-role reader reader",
                f"user add lookout:{SECRET}", "role add lookout",
                f"role grant-permission --prefix=true lookout read {store.prefix}live/",
                "user grant-role lookout lookout", "auth enable",
            ):  # fmt: skip
                etcd.ctl(*line.split())
            yield store


def asked(store, folder, user: str, *arguments: str, secret: str = SECRET) -> int:
    password = folder / "password"
    password.touch(0o600)
    password.write_text(secret)
    config = folder / "config.toml"
    login = f'user = "{user}"\npassword_file = "{password}"\n' if user else ""
    config.write_text(store.config.read_text("utf-8").replace("[fleet]", f"{login}[fleet]"))
    return main(["fleet", "--config", str(config), *arguments])


def test_who_may_read_sees_the_fleet_and_forgets_nothing(guarded, tmp_path, capfd) -> None:
    assert asked(guarded, tmp_path, "reader") == 0
    assert f"{COUNT} nodes: " in capfd.readouterr().out
    assert asked(guarded, tmp_path, "reader", "--forget", "--yes", fleets.name(17)) == 75
    told = capfd.readouterr()
    assert "permission denied" in told.err
    assert "needs a role with the right to read (for --forget, to write) what is below" in told.err
    assert asked(guarded, tmp_path, "root", "--forget", "--yes", fleets.name(17)) == 0
    assert f"{fleets.name(17)}: " in capfd.readouterr().out


@pytest.mark.parametrize("how", [(), ("--watch", "--json"), ("--watch", "--deadline", "5")])
def test_who_may_read_no_more_than_signs_of_life_is_told_at_once(
    guarded, tmp_path, capfd, how: tuple[str, ...]
) -> None:
    assert asked(guarded, tmp_path, "lookout", *how) == 75
    told = capfd.readouterr().err
    assert "permission denied" in told
    assert "needs a role with the right to read" in told
    assert f"what is below {guarded.prefix}" in told


@pytest.mark.parametrize(("user", "secret"), [("", ""), ("reader", "wrong"), ("nobody", SECRET)])
@pytest.mark.parametrize("how", [(), ("--watch",)])
def test_a_wrong_user_is_told_without_the_secret(  # noqa: PLR0917  # fixtures
    guarded, tmp_path, capfd, user: str, secret: str, how: tuple[str, ...]
) -> None:
    assert asked(guarded, tmp_path, user, *how, secret=secret) == 75
    told = capfd.readouterr()
    assert "look at user and password_file of [upstream.etcd]" in told.err
    assert SECRET not in told.err + told.out
