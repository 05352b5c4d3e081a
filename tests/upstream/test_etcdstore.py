"""A client and a sink from what is configured."""

from __future__ import annotations

import pytest
import sinks
from etcds import running
from sinks import made, undelivered

from xce_nodeagent.model.upstream import UpstreamEtcdConfig
from xce_nodeagent.upstream import etcdstore


@pytest.mark.parametrize(
    ("told", "ids"),
    [("", set()), ("a5", {0xA5}), ("14841639068965178418", {14841639068965178418})],
)
def test_a_clusters_id_in_either_notation(told, ids):
    assert etcdstore.cluster(told) >= ids
    assert bool(etcdstore.cluster(told)) == bool(ids)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:1", ""),
        ("https://h:1", ""),
        ("http://h:1", etcdstore.PLAIN),
        ("http://127.0.0.2:1", ""),
        ("http://127.evil.example:1", etcdstore.PLAIN),
    ],
)
def test_plain_http_to_another_host_is_told(url, told, chance):
    sink = etcdstore.sink(UpstreamEtcdConfig(endpoints=("http://localhost:1", url)), chance)
    assert sink.note == told
    assert sink.where == f"http://localhost:1,{url}/xce/v1/"


@pytest.mark.needs("etcd")
def test_a_password_is_read_when_it_is_wanted(tmp_path, chance):
    file = tmp_path / "password"
    with running("--bcrypt-cost", "4") as etcd, sinks.place(etcd, "/xce/v1/") as there:
        found = there.reader.status().header.cluster_id
        config = UpstreamEtcdConfig(
            endpoints=(etcd.url,),
            user="root",
            password_file=str(file),
            cluster_id=f"{found:x}",
        )
        etcd.ctl("user", "add", "root:secret")
        etcd.ctl("user", "grant-role", "root", "root")
        etcd.ctl("auth", "enable")
        sink = etcdstore.sink(config, chance)
        for mode, word, why in (
            (None, "", "No such file"),
            (0o644, "secret", "everybody can get at the secret"),
            (0o600, "wrong", "authentication failed"),
        ):
            if mode is not None:
                file.write_text(f"{word}\n", "ascii")
                file.chmod(mode)
            told = undelivered(lambda: sink.deliver(made("n1")))
            assert why in told.reason
            assert told.hopeless
            assert told.remedy
        file.write_text("secret\n", "ascii")
        sink.deliver(made("n1"))
        sink.close()
        other = UpstreamEtcdConfig(endpoints=(etcd.url,), cluster_id="abc")
        sink = etcdstore.sink(other, chance)
        assert "names another" in undelivered(lambda: sink.deliver(made("n1"))).reason
        sink.close()
