"""The files of TLS while they are replaced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from certificates import Authority
from msgspec import structs
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


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_nobody_is_waited_for_who_would_write_a_file_of_tls(tmp_path, name):
    authority = Authority(tmp_path)
    own = authority.sign("own")
    fifo, zero = tmp_path / "fifo", tmp_path / "zero"
    os.mkfifo(fifo)
    zero.symlink_to("/dev/zero")
    files = Files(authority.ca, own.cert, own.key)
    for wrong in (str(fifo), str(zero)):
        with pytest.raises(NoAnswer, match=rf"{wrong}.*: not a regular file") as told:
            Tls(structs.replace(files, **{name: wrong})).context()
        assert told.value.certificate
    link = tmp_path / "link"
    link.symlink_to(getattr(files, name))
    assert Tls(structs.replace(files, **{name: str(link)})).context()
