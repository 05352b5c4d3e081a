"""Sinks that are configured, and what is read of the configuration while the agent runs."""

from __future__ import annotations

from xce_nodeagent.daemon.account import places
from xce_nodeagent.daemon.sinks import Endpoints


def test_endpoints_that_cannot_be_read_any_more_are_logged_once(tmp_path, caplog):
    file = tmp_path / "config.toml"
    endpoints = Endpoints(places({}, str(file)))
    file.write_text('[upstream.etcd]\nendpoints = ["http://127.0.0.1:1"]\n')
    assert endpoints() == ("http://127.0.0.1:1",)
    for _ in range(2):
        file.write_text("[upstream.etcd\n")
        caplog.clear()
        assert [endpoints() for _ in range(3)] == [(), (), ()]
        (told,) = caplog.messages
        assert str(file) in told
        file.write_text('[upstream.etcd]\nendpoints = ["http://127.0.0.1:2"]\n')
        assert endpoints() == ("http://127.0.0.1:2",)
