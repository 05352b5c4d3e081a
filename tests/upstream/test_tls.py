"""The files of TLS while they are replaced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from certificates import Authority
from sinks import Clock

from xce_nodeagent.upstream.noanswer import NoAnswer
from xce_nodeagent.upstream.tls import SETTLE_SECONDS, Files, Tls


def test_a_certificate_that_is_there_before_its_key_is_waited_for(tmp_path):
    authority, clock = Authority(tmp_path), Clock()
    own, other = authority.sign("own"), authority.sign("other")
    tls = Tls(Files(authority.ca, own.cert, own.key), clock=clock)
    before = tls.context()
    assert tls.context() is before
    clock.now += 100
    shutil.copy(other.cert, own.cert)
    for seconds, hopeless in ((0, False), (SETTLE_SECONDS / 2, False), (SETTLE_SECONDS, True)):
        clock.now += seconds
        with pytest.raises(NoAnswer, match=r"own\.pem and .*own\.key: ") as told:
            tls.context()
        assert told.value.certificate == hopeless
    shutil.copy(other.key, own.key)
    assert tls.context() is not before


def test_one_that_was_wrong_from_the_start_is_somebodys_matter(tmp_path):
    authority = Authority(tmp_path)
    own, other = authority.sign("own"), authority.sign("other")
    with pytest.raises(NoAnswer) as told:
        Tls(Files(authority.ca, own.cert, other.key)).context()
    assert told.value.certificate
    assert Path(own.cert).exists()
