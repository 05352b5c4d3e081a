"""Undoing a binding on its cgroup, whatever has become of the cgroup meanwhile."""

from __future__ import annotations

from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.fence import Fence
from xce_nodeagent.privileged.label import Label
from xce_nodeagent.privileged.ops import Unbind, Unbound
from xce_nodeagent.privileged.roots import Roots

_GONE = Unbound(gone=True)


def unbind(request: Unbind, roots: Roots, fence: Fence) -> Unbound:
    """Take every grant back; see `Unbind`."""
    try:
        cgroup = roots.open(request.cgroup)
    except FileNotFoundError:
        return _renamed(request, roots, fence) or _GONE
    with cgroup:
        mark = cgroup.mark()
        if mark is None:
            in_home = request.remove and roots.is_in_home(cgroup.ref)
            if in_home and not cgroup.populated():
                # A crash came between making it and marking it, or before. In the home, what nobody
                # has and nobody is in can only be ours; elsewhere it is not ours to remove.
                cgroup.remove()
            elif fence.holds(cgroup):
                return _lost(cgroup, request, fence)
        elif mark == request.mark:
            return take_back(cgroup, fence, remove=request.remove)
        elif mark == request.stray:
            return _lost(cgroup, request, fence)
        else:
            return Unbound(gone=True, stray=mark)
    return _renamed(request, roots, fence) or _GONE


def nothing_there(request: Unbind, roots: Roots) -> bool:
    """Say whether nothing of a binding is left, where the hierarchy cannot be fenced any more.

    Ours is removed when it is empty. What has processes in it may be open to them.
    """
    try:
        cgroup = roots.open(request.cgroup)
    except FileNotFoundError:
        return request.cgroup.backend == "cgroup2"  # where nothing is renamed
    with cgroup:
        mark = cgroup.mark()
        if mark == request.mark:
            return request.remove and cgroup.remove()
        return mark is not None or not cgroup.populated()


def _lost(cgroup: Cgroup, request: Unbind, fence: Fence) -> Unbound:
    """Take back what is in a cgroup whose mark somebody took away, or changed.

    Who is in it has what was granted, so nobody else may have that yet: it gets its mark again.
    """
    cgroup.set_label(Label(request.mark, b"", released=True))
    return take_back(cgroup, fence, remove=request.remove)


def _renamed(request: Unbind, roots: Roots, fence: Fence) -> Unbound | None:
    """Nothing of that name has the mark: on cgroup v1 it may have another name now."""
    found = roots.find(request.cgroup, request.mark)
    if found is None:
        return None
    with found:
        return take_back(found, fence, remove=request.remove)


def take_back(cgroup: Cgroup, fence: Fence, *, remove: bool) -> Unbound:
    """Take every grant from a cgroup, and with `remove` remove it, unless somebody is in it."""
    if remove and cgroup.remove_alone():
        return Unbound(gone=True)
    # Somebody is in it, or it stays: it is closed before anything else. `bind`, because somebody
    # else may have taken the fence away meanwhile. The word on it comes first, so that nobody
    # opens again what is closed, whatever the ledger has lost.
    try:
        cgroup.release_label()
    finally:
        fence.bind(cgroup, (), made=False)
    populated, pids = cgroup.occupants()
    if populated or (populated is None and not remove):
        return Unbound(gone=False, pids=pids, populated=True)
    if remove:
        cgroup.clear()
        if cgroup.remove_alone():
            return Unbound(gone=True)
        populated, pids = cgroup.occupants()
        # Without a sub-cgroup, it is somebody who keeps it: who has come since, or is not wholly
        # gone yet. With some, there are too many to be removed at once.
        if populated is not False or not any(True for _ in cgroup.descendants(1)):
            return Unbound(gone=False, pids=pids, populated=True)
    # Left to its owner, still fenced, without a grant.
    cgroup.drop_mark()
    return Unbound(gone=False)
