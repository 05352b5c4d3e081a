"""What an XID, or a figure that a card tells of itself, means for whoever may get the card.

One closed table. Its causes and what it takes to end them are from NVIDIA's Xid Catalog
(docs.nvidia.com/deploy/xid-errors, "Resolution Bucket"): what is answered there by restarting the
application is no fault of the card and is ignored here; what needs a reset or a reboot makes the
card unhealthy; what is to be watched, or is judged differently from case to case, is a note. The
rows for figures follow NVIDIA's GPU Memory Error Management and the NVML API Reference.

A site that knows better says so in `[health] policy`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import Struct, structs

Verdict = Literal["ignore", "note", "unhealthy"]
"""Nothing is kept; it is kept and shown by `doctor`; nobody gets what it hits."""

Hits = Literal["compute", "slice", "card", "peers"]
"""The compute instance that the event names, or the GPU instance; where it names none, the card;
the card with all slices and shares of it; that, and the cards at the other ends of its NVLinks."""

Ends = Literal["level", "quiet", "reset", "reboot", "undrain"]
"""What ends it, beside an administrator's undrain, which ends everything: the figure itself; some
seconds without another one; the driver taking the card up anew, or saying that it needs no reset
any more; a reboot; nothing else. Each of them also ends what those before it end."""

UNKNOWN_LIMIT = 1 << 16
"""XIDs are below this; whatever else a library says is none."""


class Policy(Struct, frozen=True):
    """A row. `seconds` is for `quiet`."""

    text: str
    verdict: Verdict = "unhealthy"
    hits: Hits = "card"
    ends: Ends = "reset"
    seconds: int = 0


Table = Mapping[str, Policy]
"""Policies by their cause: `xid-79`, `thermal`."""

_HOUR, _DAY = 3600, 86_400


def _note(text: str, hits: Hits = "card", seconds: int = _DAY) -> Policy:
    return Policy(text, "note", hits, "quiet", seconds)


_APPLICATION = (
    8, 11, 13, 14, 25, 31, 37, 38, 39, 40, 41, 43, 44, 45, 60, 66, 67, 68, 69, 70, 71, 72, 75, 76,
    77, 80, *range(82, 87), 88, 89, 94, *range(96, 109), *range(126, 136), 137, 139, 141, 152, 153,
)  # fmt: skip
"""An application's fault, or one of the driver that an application's restart answers. 94 is a
memory error that was contained: what it leaves behind is told by the figures. 45 follows others."""

_XIDS: Mapping[int, Policy] = {
    32: _note("corrupted push buffer, mostly of a bad PCIe link", "slice", _HOUR),
    46: Policy("the GPU stopped processing"),
    48: Policy("uncorrectable memory error", hits="slice"),
    54: Policy("auxiliary power is not connected", ends="reboot"),
    61: _note("internal micro-controller breakpoint"),
    62: Policy("internal micro-controller halt"),
    63: Policy("a memory row or page is to be replaced at the next reset", "note"),
    64: Policy("a memory row or page could not be replaced"),
    74: Policy("NVLink error"),
    78: _note("a virtual GPU did not start"),
    79: Policy("the GPU has fallen off the bus", ends="reboot"),
    92: _note("high rate of corrected memory errors"),
    93: _note("the InfoROM's wear limit is exceeded"),
    95: Policy("uncontained memory error"),
    109: Policy("context switch timeout", hits="slice"),
    110: Policy("security fault", ends="reboot"),
    119: Policy("the GPU's system processor does not answer"),
    120: Policy("error of the GPU's system processor"),
    121: _note("corrected errors on the link to the CPU"),
    136: Policy("NVLink training failed"),
    140: Policy("unrecovered memory error"),
    142: _note("video encoder error"),
    143: Policy("the GPU did not initialise"),
    # What these mean is in a subcode that NVML does not deliver; the recovery action tells.
    144: _note("NVLink SAW error"),
    145: _note("NVLink RLW error"),
    146: _note("NVLink TLW error"),
    147: _note("NVLink TREX error"),
    148: _note("NVLink control error"),
    149: _note("NVLink network error"),
    150: _note("NVLink MSE error"),
    151: Policy("key rotation failed", ends="reboot"),
    155: _note("an NVLink went down"),
    156: Policy("a hardware resource is to be retired at the next reset", hits="slice"),
    157: _note("a hardware resource could not be retired"),
    158: Policy("fatal timeout of the GPU"),
    159: _note("error on the link to the CPU"),
    160: _note("a channel was retired"),
    161: _note("a channel could not be retired"),
    162: _note("power smoothing works again", seconds=_HOUR),
    163: _note("power smoothing is off"),
    164: _note("power smoothing is near its end of life"),
    165: _note("power smoothing is at its end of life"),
    166: _note("NVLink traffic before it was encrypted"),
    167: Policy("fatal PCIe timeout"),
    168: Policy("reduced memory capacity", "note", ends="reboot"),
    169: Policy("security micro-controller halt"),
    170: _note("NVLink interrupt in confidential mode"),
    171: Policy("uncorrectable DRAM error", "note", "slice"),
    172: Policy("uncorrectable SRAM error", "note", "slice"),
}

_RECOVERY = "the driver says that it needs "
_FIGURES: Table = {
    "lost": Policy("it does not answer", ends="level"),
    "thermal": Policy("too hot: the hardware slows it down", ends="level"),
    "corrected": Policy("too many corrected memory errors", ends="level"),
    "uncorrected": Policy("uncorrectable memory errors since the last reset", "note", ends="level"),
    "remap-pending": Policy("a memory row is replaced at the next reset", "note", ends="level"),
    "remap-failed": Policy("a memory row could not be replaced", ends="level"),
    "retire-pending": Policy("a memory page is retired at the next reset", "note", ends="level"),
    "recovery-reset": Policy(f"{_RECOVERY}a reset", ends="level"),
    "recovery-reboot": Policy(f"{_RECOVERY}a reboot of this host", ends="level"),
    "recovery-drain-p2p": Policy(f"{_RECOVERY}its peers to be idle", "note", ends="level"),
    "recovery-drain-reset": Policy(f"{_RECOVERY}to be drained and reset", ends="level"),
    "recovery-imex": Policy(f"{_RECOVERY}its IMEX domain to be recovered", ends="level"),
    "recovery-bus-reset": Policy(f"{_RECOVERY}a reset of its bus", ends="level"),
    "recovery-unknown": Policy(f"{_RECOVERY}something that is not known here", ends="level"),
}
"""What is judged from samples: it ends by itself, when the figures say so."""

DEFAULT: Table = {
    **{f"xid-{xid}": Policy("", "ignore") for xid in _APPLICATION},
    # What 154 says is asked for as a figure; 106 and 107, a test's, are among the above.
    "xid-154": Policy("", "ignore"),
    **{f"xid-{xid}": policy for xid, policy in sorted(_XIDS.items())},
    # Whatever came after this table was written.
    "xid-unknown": _note("an XID that is not known here"),
    **_FIGURES,
}

REMEDIES: Mapping[Ends, str] = {
    "level": "it ends by itself when that is over",
    "quiet": "it ends by itself {seconds} s after the last one",
    "reset": "drain the card, reset it (nvidia-smi --gpu-reset), undrain it; or reboot",
    "reboot": "reboot, or switch the host off and on; undrain it if that was not needed",
    "undrain": "undrain it when it is repaired",
}


def of(table: Table, cause: str) -> Policy:
    """Give the row of a cause; that of `xid-unknown` for an XID that has none."""
    return table.get(cause) or table["xid-unknown"]


def remedy(policy: Policy) -> str:
    """Say what is to be done."""
    return REMEDIES[policy.ends].format(seconds=policy.seconds)


def merged(changes: Mapping[str, Policy]) -> Table:
    """Give the table as a site changes it."""
    return {**DEFAULT, **changes}


def changed(rules: Mapping[str, Any]) -> tuple[dict[str, Policy], list[str]]:
    """Read a site's rules, such as `xid-31 = "unhealthy slice quiet 3600"`; give faults, too."""
    found: dict[str, Policy] = {}
    faults: list[str] = []
    for cause, rule in rules.items():
        try:
            found[cause] = _changed(cause, rule)
        except ValueError as fault:
            faults.append(f"{cause} = {rule!r}: {fault}")
    return found, faults


def _changed(cause: str, rule: Any) -> Policy:
    xid = re.fullmatch(r"xid-([1-9]\d{0,4})", cause)
    known = DEFAULT.get(cause)
    if known is None and (xid is None or int(xid[1]) >= UNKNOWN_LIMIT):
        raise ValueError(f"unknown cause; there are xid-N, xid-unknown, {', '.join(_FIGURES)}")
    words = rule.split() if isinstance(rule, str) else []
    verdict, *rest = words or [""]
    if verdict not in get_args(Verdict):
        raise ValueError(f"expected {_one_of(get_args(Verdict))} first")
    before = known or DEFAULT["xid-unknown"]
    policy = structs.replace(before, text=before.text or _OF_APPLICATIONS, verdict=verdict)
    if cause in _FIGURES:
        if rest:
            raise ValueError(f"expected nothing after {verdict!r}: figures are of a whole card,"
                             " and end by themselves")  # fmt: skip
        return policy
    if rest and rest[0] in get_args(Hits):
        policy = structs.replace(policy, hits=rest.pop(0))
    if rest:
        policy = _ending(policy, rest)
    return policy


_OF_APPLICATIONS = "an error that is mostly an application's"
_BY_EVENT = tuple(end for end in get_args(Ends) if end != "level")


def _ending(policy: Policy, words: list[str]) -> Policy:
    ends, *rest = words
    if ends == "quiet" and len(rest) == 1 and re.fullmatch(r"[1-9]\d{0,7}", rest[0]):
        return structs.replace(policy, ends=ends, seconds=int(rest[0]))
    if ends in _BY_EVENT and ends != "quiet" and not rest:
        return structs.replace(policy, ends=ends, seconds=0)
    raise ValueError(
        f"expected {_one_of(get_args(Hits))}, then 'quiet SECONDS',"
        f" {_one_of([end for end in _BY_EVENT if end != 'quiet'])}"
    )


def _one_of(words: Any) -> str:
    *some, last = map(repr, words)
    return f"{', '.join(some)} or {last}"
