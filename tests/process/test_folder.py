"""Folders that root makes: what is refused, and that nothing else is given away."""

import os
import stat

import pytest

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.privileged import folder

USER, THIRD = 65534, 65533


def owner_and_mode(path):
    found = os.lstat(path)
    return found.st_uid, stat.S_IMODE(found.st_mode)


def test_a_folder_and_what_is_above_it_are_made(tmp_path):
    path = tmp_path / "a" / "b"
    for _ in range(2):
        folder.make(str(path), os.geteuid(), os.getegid(), 0o700)
        assert owner_and_mode(path) == (os.geteuid(), 0o700)


@pytest.mark.needs("root")
def test_it_is_given_to_the_user_and_stays_so(tmp_path):
    path = tmp_path / "state"
    for _ in range(2):
        folder.make(str(path), USER, USER, 0o700)
        assert owner_and_mode(path) == (USER, 0o700)
    folder.check(str(path), USER)


@pytest.mark.parametrize("act", ["make", "check"])
def test_a_link_is_not_followed(tmp_path, act):
    victim = tmp_path / "victim"
    victim.mkdir(0o755)
    (tmp_path / "state").symlink_to(victim)
    before = owner_and_mode(victim)
    with pytest.raises(BadConfig, match="no link"):
        _do(act, tmp_path / "state")
    assert owner_and_mode(victim) == before


@pytest.mark.parametrize("act", ["make", "check"])
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_parent_in_which_others_can_replace_it_is_refused(tmp_path, act, mode):
    above = tmp_path / "above"
    (above / "state").mkdir(0o755, parents=True)
    above.chmod(mode)
    with pytest.raises(BadConfig, match="others can replace"):
        _do(act, above / "state")
    above.chmod(mode | stat.S_ISVTX)
    _do(act, above / "state")


@pytest.mark.needs("root")
@pytest.mark.parametrize("act", ["make", "check"])
@pytest.mark.parametrize("whose", ["state", "."])
def test_a_third_users_folder_is_refused(tmp_path, act, whose):
    above = tmp_path / "above"
    (above / "state").mkdir(0o755, parents=True)
    os.chown(above / whose, THIRD, THIRD)
    with pytest.raises(BadConfig, match=f"uid {THIRD}"):
        _do(act, above / "state")
    assert owner_and_mode(above / whose) == (THIRD, 0o755)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        for act in ("make", "check"):
            with pytest.raises(BadConfig, match="file"):
                _do(act, path)


def _do(act, path):
    if act == "check":
        folder.check(str(path), USER)
    else:
        folder.make(str(path), os.geteuid(), os.getegid(), 0o755)
