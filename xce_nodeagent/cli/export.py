"""The inventory for other programs: schedulers, container runtimes, NCCL, monitoring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec
from msgspec import Struct

from xce_nodeagent.cli.inventory import expect_machine, put
from xce_nodeagent.cli.invocation import (
    LOOKING_SECONDS,
    Invocation,
    command,
    example,
    pass_invocation,
    tell,
    with_agent,
    with_json,
)
from xce_nodeagent.cli.profile import with_simulate
from xce_nodeagent.errors import AgentError, BadRequest, ErrorClass, Internal
from xce_nodeagent.export.cdi import VENDOR, specs
from xce_nodeagent.export.classad import classad
from xce_nodeagent.export.dra import resource_slices
from xce_nodeagent.export.lsf import elim, indices, shared
from xce_nodeagent.export.nccl import topology
from xce_nodeagent.export.prometheus import metrics
from xce_nodeagent.export.slurm import gres_conf
from xce_nodeagent.model import name
from xce_nodeagent.model.inventory import Inventory

_FORMATS: Mapping[str, Callable[[Inventory], str]] = {
    "slurm-gres": gres_conf,
    "lsf-elim": elim,
    "dra": resource_slices,
    "nccl-topo": topology,
    "prometheus": metrics,
    "classad": classad,
}
"""The formats that are one text. `cdi` has a file for each kind of device."""

_NAMES = sorted([*_FORMATS, "cdi"])
_INTERVAL = 60


class _Source(Struct, frozen=True):
    """Where the inventory comes from: the options of `inventory` of the same names."""

    local: bool
    sysroot: str | None
    simulate: str


@command()
@click.argument("format_", metavar="FORMAT", type=click.Choice(_NAMES))
@click.option("--output", metavar="FILE", default="-", help="Write to FILE; for cdi a folder.")
@click.option("--kind", metavar="KIND", help="cdi: only this kind, such as gpu; to stdout.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.IntRange(1, 86400),
    help="lsf-elim: a line each so many seconds, until ended.",
)
@click.option("--definitions", is_flag=True, help="lsf-elim: print the lines of lsf.shared.")
@click.option("--local", is_flag=True, help="Look by this command itself, without the agent.")
@click.option("--sysroot", metavar="DIR", help="Look at a recorded machine's sys, proc and dev.")
@with_simulate()
@with_json
@with_agent(LOOKING_SECONDS)
@pass_invocation
@example(
    "xce-nodeagent export slurm-gres --output /etc/slurm/gres.conf",
    "xce-nodeagent export lsf-elim --interval 60",
    "xce-nodeagent export dra | kubectl apply -f -",
    "xce-nodeagent export cdi --output /etc/cdi",
    "xce-nodeagent export nccl-topo --output topo.xml   # for NCCL_TOPO_FILE",
    "xce-nodeagent export prometheus --output /var/lib/node_exporter/xce-inventory.prom",
    "MACHINE_RESOURCE_INVENTORY_GPUs = xce-nodeagent export classad",
)
def export(
    invocation: Invocation,
    *,
    format_: str,
    output: str,
    kind: str | None,
    interval: int | None,
    definitions: bool,
    local: bool,
    sysroot: str | None,
    simulate: str,
) -> None:
    """Print the inventory as another program reads it.

    \b
    slurm-gres  gres.conf of Slurm
    lsf-elim    a line of an ELIM of LSF
    dra         ResourceSlices of Kubernetes
    cdi         devices of container runtimes
    nccl-topo   topology file of NCCL and RCCL
    prometheus  metrics as text
    classad     GPUs of HTCondor's condor_startd

    Asks the agent, as `inventory` does. What a job cannot have now is left out of slurm-gres, cdi
    and classad; dra has it with a taint. With --json: `format`, and `files` with the text of each.
    """  # noqa: D301  # \b keeps click from filling the lines
    if format_ != "cdi" and kind is not None:
        raise click.UsageError("--kind is for cdi")
    if format_ != "lsf-elim" and (interval or definitions):
        raise click.UsageError("--interval and --definitions are for lsf-elim")
    if interval and invocation.json:
        raise click.UsageError("--interval prints lines without end, and --json one value")
    source = _Source(local, sysroot, simulate)
    if sysroot is not None:
        expect_machine(sysroot)
    if format_ == "cdi":
        _cdi(invocation, _inventory(invocation, source), output, kind)
    elif definitions:
        text = shared(indices(_inventory(invocation, source)), interval or _INTERVAL)
        _show(invocation, format_, {"lsf.shared": text}, output)
    elif interval:
        _repeat(invocation, source, output, interval)
    else:
        text = _FORMATS[format_](_inventory(invocation, source))
        _show(invocation, format_, {format_: text}, output)


def _inventory(invocation: Invocation, source: _Source) -> Inventory:
    if source.local or source.sysroot is not None or source.simulate or not invocation.has_socket():
        from xce_nodeagent.cli.local import look  # noqa: PLC0415  # discovery's libraries take time

        found: Any = msgspec.to_builtins(look(source.sysroot, source.simulate))
        if not invocation.json:
            found = name.cleaned(found)
    else:
        found = invocation.call("GetInventory", {})
    try:
        return msgspec.convert(found, Inventory)
    except msgspec.ValidationError as error:
        raise Internal(
            f"the agent's inventory is not as expected: {error}; restart the agent, so that it is"
            " of the version of this command"
        ) from error


def _show(invocation: Invocation, format_: str, files: Mapping[str, str], output: str) -> None:
    if invocation.json and output == "-":
        invocation.show_json({"format": format_, "files": files})
        return
    for text in files.values():
        put(invocation, "--output", output, text)


def _cdi(invocation: Invocation, inventory: Inventory, output: str, kind: str | None) -> None:
    files, left_out = specs(inventory)
    if kind is not None:
        if kind not in files:
            there = ", ".join(files) or "none"
            raise BadRequest(f"--kind {kind!r}: there are {there} on this host; give one of these")
        files = {kind: files[kind]}
    named = {f"{VENDOR}-{one}.json": text for one, text in files.items()}
    for one in left_out:
        tell(f"left out: {one.instance.type} {one.instance.id}: {one.why}")
    if invocation.json and output == "-":
        invocation.show_json({"format": "cdi", "files": named})
    elif output == "-":
        if len(files) > 1:
            raise BadRequest(
                f"cdi has a file for each kind, and there are {', '.join(files)}: give --kind KIND,"
                " or --output FOLDER for all"
            )
        for text in named.values():
            invocation.show(text)
    else:
        _fill(invocation, output, named, whole=kind is None)


def _fill(invocation: Invocation, folder: str, files: Mapping[str, str], *, whole: bool) -> None:
    """Write files to a folder, which is made if need be; if these are all, no other of ours stays.

    A file of a kind that is gone would go on offering it.
    """
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
    except OSError as error:
        why = f"--output {folder!r}: {error.strerror}; cdi writes several files: name a folder"
        raise BadRequest(why) from error
    for file, text in files.items():
        put(invocation, "--output", os.path.join(folder, file), text)
    for file in sorted(os.listdir(folder)) if whole else ():
        if file.startswith(f"{VENDOR}-") and file.endswith(".json") and file not in files:
            os.unlink(os.path.join(folder, file))
            tell(f"removed {file}: nothing of that kind can be had now")


def _repeat(invocation: Invocation, source: _Source, output: str, seconds: int) -> None:
    """Print a line at each interval; what may come right by itself is told, and tried again."""
    while True:
        try:
            put(invocation, "--output", output, elim(_inventory(invocation, source)))
        except AgentError as error:
            if error.error_class != ErrorClass.TRANSIENT:
                raise
            tell(error.message)
        time.sleep(seconds)
