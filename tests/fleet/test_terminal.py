"""What a terminal would obey, in what one node of the store says of itself."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import filling
import fleets
import msgspec
import pytest
from msgspec import structs

from xce_nodeagent.cli import matrix
from xce_nodeagent.cli.main import main
from xce_nodeagent.cli.table import columns, inventory_table
from xce_nodeagent.cli.tree import inventory_tree
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.name import cleaned
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.etcdwire import put
from xce_nodeagent.upstream.packing import pack
from xce_nodeagent.upstream.report import report

OBEYED = "\x1b]0;taken\x07\x1b[2J\x9b31m\u202egnp\u2066\u2028\u0085\r\nall is well "
AT = 2  # a node with jobs
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def hostile() -> Inventory:
    """Give an inventory in which every text that a node chooses has what a terminal obeys."""
    found = fleets.inventory(AT)
    ids = {one.id: OBEYED + one.id for one in found.instances}
    return structs.replace(
        found,
        instances=tuple(
            structs.replace(
                one,
                id=ids[one.id],
                parent=ids.get(one.parent or ""),
                overlaps=tuple(ids[other] for other in one.overlaps),
                healthy=False,
                reason=OBEYED,
                attributes={**one.attributes, "model": OBEYED, "interfaces": [OBEYED]},
            )
            for one in found.instances
        ),
        attributes={OBEYED: [OBEYED]},
    )


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in STYLE.sub("", text).split("\n"))


@pytest.mark.parametrize("how", ["table", "tree", "matrix"])
def test_an_inventory_that_is_shown(how: str) -> None:
    value = cleaned(msgspec.to_builtins(hostile()))
    text = {
        "table": lambda: inventory_table(value),
        "tree": lambda: inventory_tree(value),
        "matrix": lambda: matrix.matrix(value, matrix.chart(value), columns()),
    }[how]()
    assert "?]0;taken" in text
    assert harmless(text)


@pytest.mark.needs("etcd")
@pytest.mark.parametrize("place", ["pipe", "terminal"])
def test_a_node_of_the_store(changed, place: str) -> None:
    made = report(hostile(), (), agent=OBEYED)
    name = fleets.name(AT)
    changed.client.txn((), [put(changed.keys.shape(made.shape), made.shape_data)])
    filling.commit(
        changed.client,
        [put(changed.keys.entry(name, entry), data) for entry, data in made.entries.items()],
    )
    command = [sys.executable, "-m", "xce_nodeagent", "fleet", name]
    text = _shown([*command, "--config", str(changed.config)], place)
    assert "?]0;taken" in text
    assert harmless(text.replace("\r\n", "\n") if place == "terminal" else text)


def _shown(command: list[str], place: str) -> str:
    if place == "pipe":
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        return done.stdout.decode() + done.stderr.decode()
    above, below = pty.openpty()
    try:
        with subprocess.Popen(command, stdin=below, stdout=below, stderr=below) as program:
            os.close(below)
            told = b""
            while piece := _piece(above):
                told += piece
            assert program.wait(60) == 0
    finally:
        os.close(above)
    return told.decode()


def _piece(above: int) -> bytes:
    try:
        return os.read(above, 65536)
    except OSError:  # EIO: nobody has the other end any more
        return b""


@pytest.mark.needs("etcd")
def test_who_lives_under_a_name_that_is_to_be_forgotten(changed, capfd) -> None:
    name = fleets.name(AT)
    live = pack(Live(agent=OBEYED, boot_id=OBEYED, node=name))
    changed.client.txn((), [put(changed.keys.live(name), live, changed.lease)])
    assert main(["fleet", "--forget", "--yes", name, "--config", str(changed.config)]) != 0
    told = capfd.readouterr().err
    assert "?]0;taken" in told
    assert harmless(told)
    assert "\nall is well" not in told
