"""How the agent comes to the supervisor: by a descriptor that was inherited, or by a socket."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.privileged import folder
from xce_nodeagent.privileged.channel import make_room, take_no_descriptors
from xce_nodeagent.privileged.serve import Log


class Inherited:
    """An agent that is here already; when it goes, all goes."""

    lasting = False

    def __init__(self, descriptor: int) -> None:
        self._end: socket.socket | None = socket.socket(fileno=descriptor)
        take_no_descriptors(self._end)
        os.set_inheritable(descriptor, False)  # noqa: FBT003  # it takes it so only

    def fileno(self) -> int:
        """There is nothing to wait for."""
        return -1

    def enter(self) -> socket.socket | None:
        """Give the agent's connection, once."""
        end, self._end = self._end, None
        return end

    def close(self) -> None:
        """Nobody comes in any more."""
        if self._end is not None:
            self._end.close()
            self._end = None


class Listening:
    """A socket that only the agent's user may connect to."""

    lasting = True

    def __init__(self, path: str, uid: int, log: Log) -> None:
        self._uid = uid
        self._log = log
        folder.check(os.path.dirname(path), uid)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # It comes to its name when it is the agent's: an agent that knocks meanwhile is to find
        # nobody, which it takes for a moment's absence, and not a door that is closed to it.
        made = f"{path}.new"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(made)  # of a supervisor that was killed here
            before = os.umask(0o177)
            try:
                self._listener.bind(made)
            finally:
                os.umask(before)
            if uid != os.geteuid():
                _give(made, uid)
            take_no_descriptors(self._listener)  # who comes in by it neither can send one
            self._listener.listen(4)
            self._listener.settimeout(0)
            os.rename(made, path)  # over a former supervisor's
        except BaseException:
            self._listener.close()
            raise

    def fileno(self) -> int:
        """Give the listener's descriptor."""
        return self._listener.fileno()

    def enter(self) -> socket.socket | None:
        """Let whoever knocks in, if it is the agent's user.

        Raise OSError when there is no room for anybody; whoever knocks still waits then.
        """
        try:
            end, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        # struct ucred, as the kernel noted it at connect(2) (unix(7), SO_PEERCRED)
        pid, uid, _ = struct.unpack(
            "=iII", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if uid != self._uid:
            self._log(f"pid {pid} of uid {uid} wants a helper: refused, expected uid {self._uid}")
            end.close()
            return None
        make_room(end)
        return end

    def close(self) -> None:
        """Nobody comes in any more. The path stays, for systemd or the next one to remove."""
        self._listener.close()


def _give(path: str, uid: int) -> None:
    """Give a socket that we have just made to a user.

    The folder may be that user's, who could have put a link to any file in its place meanwhile.
    So what is there is opened first, then looked at, and it is this that is given away.
    """
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
            raise BadConfig(f"{path}: somebody has replaced the socket that was made here")
        os.chown(f"/proc/self/fd/{descriptor}", uid, -1)
    finally:
        os.close(descriptor)
