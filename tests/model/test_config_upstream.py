"""What the agent tells others is configured without secrets, and without sending any in plain."""

from __future__ import annotations

import pytest

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.model.config import parse


def test_every_key_is_read():
    config = parse(
        """
[upstream.file]
path = "/var/lib/x/report.json"
[upstream.http]
url = "https://master:8443/xce?cluster=a"
token_file = "/etc/x/token"
ca = "/etc/x/ca.pem"
cert = "/etc/x/cert.pem"
key = "/etc/x/key.pem"
full_seconds = 60
[upstream.etcd]
endpoints = ["https://etcd1:2379/", "https://[fd00::1]:2379"]
prefix = "/site/xce"
lease_seconds = 5
user = "xce"
password_file = "/etc/x/password"
cluster_id = "cdf818194e3a8c32"
[metrics]
listen = "[::1]:9400"
textfile = "/var/lib/node_exporter/xce.prom"
textfile_seconds = 5
[fleet]
grace_seconds = 0
block = "^(r[0-9]+)n"
""",
        "c",
    )
    assert config.upstream_file.path == "/var/lib/x/report.json"
    assert config.upstream_http.url == "https://master:8443/xce?cluster=a"
    assert config.upstream_http.full_seconds == 60
    assert config.upstream_etcd.endpoints == ("https://etcd1:2379", "https://[fd00::1]:2379")
    assert config.upstream_etcd.prefix == "/site/xce/"
    assert config.metrics.listen == "[::1]:9400"
    assert config.fleet.block == "^(r[0-9]+)n"


def test_a_prefix_may_end_with_a_slash():
    assert parse('[upstream.etcd]\nprefix = "/a/b/"', "c").upstream_etcd.prefix == "/a/b/"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[upstream.http]\nurl = "ftp://h"', "c:2: [upstream.http] url"),
        ('[upstream.http]\nurl = "http://h:0"', "expected a URL"),
        ('[upstream.http]\nurl = "http://h:99999"', "expected a URL"),
        ('[upstream.http]\nurl = "http://["', "expected a URL"),
        ('[upstream.http]\nurl = "http://a b/"', "expected a URL"),
        ('[upstream.http]\nurl = "http://\\u00e9/"', "expected a URL"),
        ('[upstream.http]\nurl = "http://u:secret@h"', "expected no user and no password"),
        ('[upstream.http]\nurl = "http://h/#x"', "expected nothing after '#'"),
        ("[upstream.http]\nurl = 5", "expected a URL"),
        ('[upstream.http]\ncert = "/a"', "c:1: [upstream.http]: expected both of cert and key"),
        ('[upstream.http]\nurl = "http://h"\ntoken_file = "/a"', "would go in plain"),
        ('[upstream.http]\nurl = "http://127.a.org"\ntoken_file = "/a"', "would go in plain"),
        ('[upstream.http]\nca = "/a"', "c:1: [upstream.http]: url is missing"),
        ('[upstream.http]\ntoken_file = "/a"', "url is missing"),
        ('[upstream.http]\nurl = "http://127.0.0.1"\nca = "/a"', "are for https"),
        ('[upstream.etcd]\nendpoints = "http://h"', "expected a list of URLs"),
        ('[upstream.etcd]\nendpoints = ["http://h", "h:1"]', "entry 2, 'h:1': expected a URL"),
        ('[upstream.etcd]\nendpoints = ["http://h/v3"]', "expected nothing after the host"),
        ('[upstream.etcd]\nca = "/a"', "c:1: [upstream.etcd]: endpoints are missing"),
        ('[upstream.etcd]\nuser = "u"\npassword_file = "/a"', "endpoints are missing"),
        ('[upstream.etcd]\nendpoints = ["http://127.a.org"]\nuser = "u"\npassword_file = "/a"',
         "would go in plain"),
        ('[upstream.etcd]\nprefix = "xce"', "between slashes"),
        ('[upstream.etcd]\nprefix = "/a//b/"', "between slashes"),
        ("[upstream.etcd]\nprefix = 5", "between slashes"),
        ("[upstream.etcd]\nlease_seconds = 1", "2 to 3600"),
        ("[upstream.etcd]\nlease_seconds = true", "2 to 3600"),
        ('[upstream.etcd]\nuser = "u"', "expected both of user and password_file"),
        ('[upstream.etcd]\ncluster_id = "x"', "in digits"),
        ('[metrics]\nlisten = "0.0.0.0:9400"', "only this host may ask"),
        ('[metrics]\nlisten = "127.0.0.1:0"', "only this host may ask"),
        ('[metrics]\nlisten = "[::]:9400"', "only this host may ask"),
        ('[metrics]\nlisten = "unix:run"', "only this host may ask"),
        ('[metrics]\nlisten = "unix:/"', "below the root"),
        ('[metrics]\ntextfile = "/a/b"', "ends with .prom"),
        ("[fleet]\ngrace_seconds = -1", "0 to 3600"),
        ('[fleet]\nblock = "^r"', "with one group, such as '^(r[0-9]+)', found 0"),
        ('[fleet]\nblock = "("', "expected a regular expression: "),
        ('[fleet]\nblock = "attribute:"', "expected an attribute's name"),
    ],
)  # fmt: skip
def test_what_is_wrong_says_what_is_right(text, told):
    with pytest.raises(BadConfig) as caught:
        parse(text, "c")
    assert told in caught.value.message
