"""A store that speaks TLS and wants a certificate of whoever comes."""

from __future__ import annotations

import contextlib
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sinks
from certificates import Authority
from etcds import folder, running
from sinks import eventually, made, undelivered

from xce_nodeagent.upstream import certificate
from xce_nodeagent.upstream.tls import Files, Tls

pytestmark = pytest.mark.needs("etcd")


@pytest.fixture(scope="module")
def authority():
    with folder() as where:
        yield Authority(where)


@contextlib.contextmanager
def guarded(authority):
    """Run an etcd that only those may ask who have a certificate of the authority."""
    server = authority.sign("server")
    options = ["--cert-file", server.cert, "--key-file", server.key]
    options += ["--client-cert-auth", "--trusted-ca-file", authority.ca, "--bcrypt-cost", "4"]
    with running(*options, scheme="https") as one:
        yield one


@pytest.fixture(scope="module")
def secured(authority):
    with guarded(authority) as one:
        yield one


@pytest.fixture
def there(secured, request):
    with sinks.place(secured, sinks.prefix(request)) as one:
        yield one


def test_a_certificate_of_ours_and_one_of_theirs(there, authority):
    pair = authority.sign("agent")
    sink = there.sink(tls=Tls(Files(authority.ca, pair.cert, pair.key)))
    assert eventually(lambda: sink.deliver(made("n1"))) > 0


def test_a_certificate_that_ended_is_named_with_its_date(there, authority, tmp_path):
    """And the one that takes its place counts at once."""
    ended = authority.sign("ended", days=-1)
    files = Files(authority.ca, str(tmp_path / "agent.pem"), str(tmp_path / "agent.key"))
    shutil.copy(ended.cert, files.cert)
    shutil.copy(ended.key, files.key)
    sink = there.sink(tls=Tls(files))
    told = undelivered(lambda: sink.deliver(made("n1")))
    assert told.hopeless
    end = certificate.read(Path(ended.cert)).end
    assert f"{files.cert} ended {end:%Y-%m-%d %H:%M} UTC" in told.reason
    assert "renew the certificate" in told.remedy
    good = authority.sign("good")
    shutil.copy(good.cert, files.cert)
    shutil.copy(good.key, files.key)
    eventually(lambda: sink.deliver(made("n1")))


def test_where_etcd_has_users_too_a_certificate_may_have_no_common_name(authority):
    """Its gateway refuses those that have one, for it would not take it for the user's."""
    named, unnamed = authority.sign("n1"), authority.sign("n1-unnamed", subject="/O=site")
    ctl = ("--cacert", authority.ca, "--cert", named.cert, "--key", named.key)
    with guarded(authority) as etcd, sinks.place(etcd, "/t/") as there:
        for words in (("user", "add", "root:pw"), ("user", "grant-role", "root", "root")):
            etcd.ctl(*ctl, *words)
        etcd.ctl(*ctl, "auth", "enable")
        for pair, good in ((named, False), (unnamed, True)):
            tls = Tls(Files(authority.ca, pair.cert, pair.key))
            sink = there.sink(tls=tls, credentials=lambda: ("root", "pw"), user="root")
            if good:
                eventually(lambda sink=sink: sink.deliver(made("n1")))
                return
            told = undelivered(lambda sink=sink: sink.deliver(made("n1")))
            assert told.hopeless
            assert "our certificate has a CommonName, and etcd has users" in told.reason
            assert "subjectAltName" in told.remedy


def test_without_a_certificate(there, authority):
    told = undelivered(lambda: there.sink(tls=Tls(Files(authority.ca))).deliver(made("n1")))
    assert there.urls[0] in told.reason


def test_a_store_that_is_not_the_one(there, authority, tmp_path):
    """Its certificate is not of the authority that is trusted here."""
    other = Authority(tmp_path, "other")
    pair = authority.sign("agent2")
    sink = there.sink(tls=Tls(Files(other.ca, pair.cert, pair.key)))
    told = undelivered(lambda: sink.deliver(made("n1")))
    assert told.hopeless
    assert "its certificate is not accepted: " in told.reason


def test_files_that_are_no_certificates(there, authority, tmp_path):
    nothing, rubbish = str(tmp_path / "none.pem"), str(tmp_path / "rubbish.pem")
    Path(rubbish).write_text("-----BEGIN CERTIFICATE-----\nx\n", "ascii")
    pair, other = authority.sign("agent3"), authority.sign("agent4")
    for files in (
        Files(nothing, pair.cert, pair.key),
        Files(rubbish, pair.cert, pair.key),
        Files(authority.ca, nothing, pair.key),
        Files(authority.ca, rubbish, pair.key),
        Files(authority.ca, pair.cert, other.key),  # not its key
    ):
        sink = there.sink(tls=Tls(files))
        told = undelivered(lambda sink=sink: sink.deliver(made("n1")))
        assert told.hopeless, files
        assert str(tmp_path) in told.reason or pair.cert in told.reason
        assert "renew" in told.remedy


def test_plain_where_tls_is_spoken(there):
    plain = [url.replace("https:", "http:") for url in there.urls]
    told = undelivered(lambda: there.sink(urls=plain).deliver(made("n1")))
    assert plain[0] in told.reason


def test_the_dates_of_a_certificate(authority, tmp_path):
    now = datetime.now(UTC)
    pair = authority.sign("dates", days=3)
    found = certificate.read(Path(pair.cert))
    assert abs(found.start - now) < timedelta(hours=1)
    assert found.end - found.start == timedelta(days=3)
    assert certificate.wrong(Path(pair.cert), now + timedelta(hours=1)) == ""
    assert "ended" in certificate.wrong(Path(pair.cert), now + timedelta(days=4))
    assert "begins" in certificate.wrong(Path(pair.cert), now - timedelta(days=1))
    assert certificate.read(tmp_path / "none") is None
    tls = Tls(Files(authority.ca, pair.cert, pair.key))
    assert tls.soon() == ""  # nobody has used it yet
    tls.context()
    assert tls.soon() == f"{pair.cert} ends in 2 days, {found.end:%Y-%m-%d %H:%M} UTC"
    assert certificate.wrong(Path(pair.key), now) == ""
