"""Which cgroups the binder touches: those below its own roots, and of these only the free ones.

The check is the binder's own, whatever the agent checked before: a path is split by its text,
matched with the configured roots, and then walked by the kernel from the root's directory with
openat2(2), which refuses every symbolic link and every way out. Never touched are a root itself,
what is above a root, the cgroups in which the binder and the agent run and those above them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

from xce_nodeagent.errors import BadCgroup, BadConfig, Enforcement, exhausted
from xce_nodeagent.host.cgroup import Mount, hierarchies
from xce_nodeagent.model.plan import Backend, CgroupRef
from xce_nodeagent.privileged import ancestry
from xce_nodeagent.privileged.ancestry import openat2
from xce_nodeagent.privileged.cgroup import HOME, WALK_LIMIT, Cgroup

Where = Literal["home", "roots", "any"]

_PLAIN = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]{0,254}")  # neither . nor .., and no /
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PATH_LIMIT = 4095  # PATH_MAX without its NUL
_FIND_LIMIT = 8 * WALK_LIMIT  # only who may prepare can make so many in our way


def cgroups_of(proc_cgroup: str, mounted: Iterable[Mount]) -> frozenset[CgroupRef]:
    """Give the cgroups of a process from the text of its /proc/PID/cgroup (cgroups(7))."""
    found: set[CgroupRef] = set()
    for line in proc_cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        backend: Backend
        if not controllers:
            backend = "cgroup2"
        elif "devices" in controllers.split(","):
            backend = "cgroup1"
        else:
            continue
        for mount in mounted:
            inside = _below(path, mount.root)
            if mount.backend == backend and (inside is not None or path == mount.root):
                whole = f"{mount.point}/{inside or ''}".rstrip("/")
                found.add(CgroupRef(backend, whole))
    return frozenset(found)


def _below(path: str, root: str) -> str | None:
    """Give the way from a root to a path strictly below it; None when it is not below."""
    prefix = root.rstrip("/") + "/"
    rest = path.removeprefix(prefix)
    return rest if path.startswith(prefix) and rest else None


class Roots:
    """The home that the binder makes cgroups in, and the roots below which callers name theirs.

    Roots are opened when they are first needed, and again when they were removed meanwhile: an
    allowed root may be a unit that starts later. `own` are the cgroups of the agent and of its
    helpers; the binder adds its own. `owners` are the uids, beside root, that callers may be.
    """

    def __init__(
        self,
        *,
        home: CgroupRef | None,
        roots: Iterable[CgroupRef] = (),
        own: Iterable[CgroupRef] = (),
        owners: Collection[int] = (),
        proc: Path = Path("/proc"),
    ) -> None:
        self._proc = proc
        self._home = home
        self._roots = tuple(roots)
        self._every = (*self._roots, *((home,) if home else ()))
        self._fds: dict[CgroupRef, int] = {}
        inside = cgroups_of((proc / "self/cgroup").read_text("utf-8"), self._mounts())
        self._own = frozenset(own) | inside
        self._owners = frozenset({0, *owners})
        self._inside_home = f"{home.path}/" if home else ""
        self._others = [ref.path for ref in (*self._roots, *self._own)]

    def close(self) -> None:
        """Close the roots."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _mounts(self) -> tuple[Mount, ...]:
        return hierarchies((self._proc / "self/mountinfo").read_text("utf-8"))

    # ---- the home ---------------------------------------------------------------------------

    def make_home(self) -> None:
        """Make the home if it is missing, and mark it as made by us."""
        if self._home is None:
            return
        path = self._home.path
        if any(path == mount.point for mount in self._mounts()):
            raise BadConfig(
                f"cgroup_root {path} is the root of its hierarchy: the jobs' home must be a"
                " cgroup below it, such as a delegated unit's",
                cgroup=path,
            )
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            pass
        except OSError as error:
            raise Enforcement(
                f"cgroup {path}, the jobs' home, cannot be made: {error.strerror}; make the"
                " cgroup above it, or set cgroup_root to a delegated one",
                cgroup=path,
            ) from error
        else:
            os.setxattr(path, HOME, b"1")
        self._root_fd(self._home)

    def home(self) -> Cgroup | None:
        """Open the home; None when there is none, or it was removed. The caller closes it."""
        if self._home is None:
            return None
        try:
            held = self._root_fd(self._home)
            if os.fstat(held).st_ino != os.stat(self._home.path).st_ino:  # it was made anew
                os.close(self._fds.pop(self._home))
                held = self._root_fd(self._home)
            fd = os.dup(held)
        except FileNotFoundError:
            return None
        return Cgroup(self._home, fd, -1, self._home.path)  # the name is absolute

    def is_in_home(self, ref: CgroupRef) -> bool:
        """Say whether a cgroup is below the home, where only a binder makes any."""
        return self._home is not None and ref.path.startswith(self._inside_home)

    # ---- opening ----------------------------------------------------------------------------

    def open(self, ref: CgroupRef, where: Where = "any") -> Cgroup:
        """Open a cgroup below the home, the roots, or either.

        Raises FileNotFoundError when there is none of that name, BadCgroup when it is not ours to
        touch. The caller closes it.
        """
        return self._open(ref, *self._place(ref, where))

    def _open(self, ref: CgroupRef, root: CgroupRef, inside: str) -> Cgroup:
        for again in (True, False):
            parent = self._root_fd(root)
            try:
                return Cgroup(ref, openat2(parent, inside), parent, inside)
            except FileNotFoundError:
                # The root may have been removed and made again since it was opened.
                if not again:
                    raise
                os.close(self._fds.pop(root))
            except OSError as error:
                if exhausted(error):
                    raise
                raise self._unusable(ref, error) from None
        raise AssertionError  # the second round returns or raises

    def make(self, ref: CgroupRef) -> tuple[Cgroup, bool]:
        """Make a cgroup directly below the home, or open it when it is there; say which."""
        root, inside = self._place(ref, "home")
        if "/" in inside:
            raise BadCgroup(
                f"cgroup {ref.path}: the agent makes cgroups directly below {root.path} only",
                cgroup=ref.path,
            )
        made = True
        try:
            os.mkdir(inside, 0o755, dir_fd=self._root_fd(root))
        except FileExistsError:
            made = False
        except FileNotFoundError:
            if root in self._fds:
                os.close(self._fds.pop(root))
            raise Enforcement(
                f"cgroup {root.path}, the jobs' home, was removed: restart its unit, then retry",
                cgroup=root.path,
            ) from None
        except OSError as error:
            if exhausted(error):
                raise
            raise self._unusable(ref, error) from None
        return self._open(ref, root, inside), made

    def _place(self, ref: CgroupRef, where: Where) -> tuple[CgroupRef, str]:
        path = ref.path
        home = self._home
        if home is not None and where != "roots" and path.startswith(self._inside_home):
            # A job's own cgroup, on a job's path: a plain name directly below the home, which no
            # other root and no cgroup of ours lies in or below.
            name = path[len(self._inside_home) :]
            if (
                ref.backend == home.backend
                and _PLAIN.fullmatch(name)
                and not any(other.startswith(path) for other in self._others)
            ):
                return home, name
        parts = path.split("/")
        if (
            not path.startswith("/")
            or len(path.encode()) > _PATH_LIMIT
            or "\0" in path
            or any(part in ("", ".", "..") for part in parts[1:])
        ):
            raise BadCgroup(
                f"cgroup {path[:200]!r}: expected an absolute path without '.', '..', '//' and NUL",
                cgroup=path[:200],
            )
        for root in self._every:
            if root.backend == ref.backend and (path == root.path or _below(root.path, path)):
                raise BadCgroup(
                    f"cgroup {path} is, or is above, {root.path}, one of the agent's roots: name"
                    " a cgroup below it",
                    cgroup=path,
                )
        for own in self._own:
            if own.backend == ref.backend and (path == own.path or _below(own.path, path)):
                raise BadCgroup(
                    f"cgroup {path}: the agent or its helpers run in it: name another one",
                    cgroup=path,
                )
        candidates = {"home": (self._home,), "roots": self._roots, "any": self._every}[where]
        below = [
            (len(root.path), root, inside)
            for root in candidates
            if root and root.backend == ref.backend and (inside := _below(path, root.path))
        ]
        if not below:
            names = ", ".join(root.path for root in candidates if root) or "none is configured"
            raise BadCgroup(
                f"cgroup {path} is not below an allowed root ({names}): name one that is, or add"
                " its root to cgroup_allowed_roots",
                cgroup=path,
            )
        # From the outermost root, so that `check_free` sees every ancestor that can be bound.
        _, root, inside = min(below)
        return root, inside

    def _root_fd(self, root: CgroupRef) -> int:
        if root in self._fds:
            return self._fds[root]
        try:
            fd = os.open(root.path, _DIRECTORY)
        except FileNotFoundError:
            raise  # what was below it is gone as well
        except OSError as error:
            if exhausted(error):
                raise
            raise BadCgroup(
                f"{root.path}, a configured root of cgroups: {error.strerror}", cgroup=root.path
            ) from None
        number = os.fstat(fd).st_dev
        device = (os.major(number), os.minor(number))
        if not any(m.device == device and m.backend == root.backend for m in self._mounts()):
            os.close(fd)
            kind = "a cgroup of v2" if root.backend == "cgroup2" else "a v1 devices cgroup"
            raise BadCgroup(
                f"{root.path}, a configured root of cgroups, is not {kind}", cgroup=root.path
            )
        self._fds[root] = fd
        return fd

    @staticmethod
    def _unusable(ref: CgroupRef, error: OSError) -> BadCgroup:
        why = {
            errno.ELOOP: "it goes over a symbolic link: name it without links",
            errno.EXDEV: "it leads out of its root",
            errno.ENOTDIR: "it is not a cgroup",
        }.get(error.errno or 0, error.strerror)
        return BadCgroup(f"cgroup {ref.path}: {why}", cgroup=ref.path)

    # ---- marks ------------------------------------------------------------------------------

    def find(self, ref: CgroupRef, mark: str) -> Cgroup | None:
        """Look for a cgroup that was renamed since it got this mark; the caller closes it.

        Only v1 renames, and only below the same parent, so it is as deep as it was. Folders that
        `check_owners` would refuse hold none, and are not entered. Raises Enforcement when there
        are too many to look at.
        """
        if ref.backend != "cgroup1":
            return None
        root, inside = self._place(ref, "any")
        try:
            parent = self._root_fd(root)
        except FileNotFoundError:
            return None
        depth = ref.path.count("/")
        with Cgroup(root, os.dup(parent), -1, root.path) as top:
            ways = top.descendants(
                _FIND_LIMIT + 1,
                enter=lambda way: (
                    way.ref.path.count("/") < depth and not ancestry.loose(way.fd, self._owners)
                ),
            )
            for number, way in enumerate(ways):
                if number == _FIND_LIMIT:
                    raise Enforcement(
                        f"cgroup {ref.path} is gone, and {root.path} has too many cgroups to see"
                        " whether it was renamed: remove those that nobody uses, then retry",
                        cgroup=ref.path,
                    )
                if way.mark() == mark:
                    inside = way.ref.path[len(root.path) + 1 :]
                    return Cgroup(way.ref, os.dup(way.fd), parent, inside)
        return None

    def marked(self) -> tuple[list[CgroupRef], bool]:
        """Find the bound cgroups below the allowed roots; say whether everything was looked into.

        Bindings do not nest, and none was made below a folder that `check_owners` would refuse:
        neither is entered, so no job can make this long.
        """
        found: list[CgroupRef] = []
        left = _FIND_LIMIT
        for root in self._roots:
            try:
                parent = self._root_fd(root)
            except (BadCgroup, OSError) as error:
                if exhausted(error):
                    raise
                continue  # an allowed root may be a unit that starts later
            bound: set[str] = set()
            with Cgroup(root, os.dup(parent), -1, root.path) as top:
                for way in top.descendants(
                    left + 1,
                    enter=lambda way, bound=bound: (  # type: ignore[misc]  # mypy sees no default
                        way.ref.path not in bound and not ancestry.loose(way.fd, self._owners)
                    ),
                ):
                    if left == 0:
                        return found, False
                    left -= 1
                    if way.mark() is not None:
                        bound.add(way.ref.path)
                        found.append(way.ref)
        return found, True

    def bearer(self, ref: CgroupRef) -> tuple[str, str] | None:
        """Give the path and mark of the bound cgroup that this one is, or is below; None if none.

        A cgroup that is gone, or not below our roots, is in none.
        """
        try:
            root, inside = self._place(ref, "any")
            return ancestry.bearer(self._root_fd(root), root.path, inside.split("/"))
        except (BadCgroup, OSError) as error:
            if exhausted(error):
                raise
            return None

    # ---- taking -----------------------------------------------------------------------------

    def check_owners(self, cgroup: Cgroup) -> None:
        """Raise BadCgroup when a user could take processes out of a cgroup that a caller named."""
        ancestry.check_owners(cgroup, self._owners)

    def check_free(self, cgroup: Cgroup, *, populated: bool) -> None:
        """Raise BadCgroup unless the cgroup can be bound anew.

        It must not be below or above a bound one, and have no process in it or below it unless
        `populated` allows that.
        """
        path = cgroup.ref.path
        parts = cgroup.name.split("/")
        root = path.removesuffix(f"/{cgroup.name}")
        if above := ancestry.bearer(cgroup.parent, root, parts[:-1]):
            raise BadCgroup(
                f"cgroup {path} is below {above[0]}, which is bound: release that first",
                cgroup=path,
                bound=above[0],
            )
        for number, below in enumerate(cgroup.descendants(WALK_LIMIT + 1)):
            if number == WALK_LIMIT:
                raise BadCgroup(
                    f"cgroup {path} has more than {WALK_LIMIT} sub-cgroups: remove those that"
                    " nobody uses, or bind it before they are made",
                    cgroup=path,
                )
            if below.mark() is not None:
                raise BadCgroup(
                    f"cgroup {path} is above {below.ref.path}, which is bound: release that first",
                    cgroup=path,
                    bound=below.ref.path,
                )
        if not populated and cgroup.populated():
            raise BadCgroup(
                f"cgroup {path} has processes in it: a cgroup is bound before its first process"
                " enters, or with --adopt",
                cgroup=path,
                pids=list(cgroup.pids()),
            )
