"""The tests' own etcd does what the other tests rely on."""

from __future__ import annotations

import socket

import pytest
from etcds import Etcd, begin, folder, free_ports

pytestmark = pytest.mark.needs("etcd")


def test_its_data_outlives_a_kill(etcd):
    etcd.ctl("put", "a", "1")
    before = etcd.revision()
    etcd.restart()
    assert etcd.ctl("get", "a", "--print-value-only").strip() == "1"
    assert etcd.revision() == before
    assert etcd.keys() == ["a"]


@pytest.mark.parametrize("tries", [1, 2])
def test_ports_that_somebody_took_meanwhile_are_chosen_anew(tries):
    with socket.create_server(("127.0.0.1", 0)) as other, folder() as where:
        made = []

        def make():
            client, peer = free_ports(2)
            if not made:
                client = other.getsockname()[1]
            urls = {"url": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
            made.append(Etcd(where, **urls))
            return made[-1:]

        if tries == 1:
            with pytest.raises(RuntimeError, match="address already in use"):
                begin(make, tries)
        else:
            (one,) = begin(make, tries)
            assert one is made[1]
            assert one.healthy()
            one.kill()
