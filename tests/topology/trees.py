"""Small machines as an inventory has them, and random ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from xce_nodeagent.model.instance import AttributeValue, Instance
from xce_nodeagent.model.inventory import Inventory


def function(*path: str, numa: int | None = None) -> dict[str, Any]:
    """Give what the topology has of a function below these bridges, the host bridge first."""
    found: dict[str, Any] = {"class": "000000", "root": path[0], "bridges": list(path[1:])}
    return found if numa is None else found | {"numa_node": numa}


def card(
    address: str, kind: str = "gpu", *, provider: str = "", **facts: AttributeValue
) -> Instance:
    """Give an instance whose id is its address."""
    return Instance(
        id=address, type=kind, provider=provider or kind,
        attributes={"pci_address": address, **facts},
    )  # fmt: skip


def machine(
    instances: Iterable[Instance],
    pci: Mapping[str, dict[str, Any]],
    *,
    nodes: Sequence[int] = (0, 1),
    links: Sequence[tuple[str, str, str, int]] = (),
    **topology: Any,
) -> Inventory:
    """Give an inventory; a link is (kind, one, other, count)."""
    return Inventory(
        source="test", node="n", boot_id="b", instances=tuple(instances),
        topology={
            "pci": dict(pci),
            "numa_nodes": [{"id": node, "cpus": str(node)} for node in nodes],
            "links": [dict(zip(("kind", "one", "other", "count"), link, strict=True))
                      for link in links],
            **topology,
        },
    )  # fmt: skip


@st.composite
def machines(draw: st.DrawFn) -> Inventory:
    """Draw a machine: PCIe switches in switches, several host bridges, NUMA nodes told or not.

    A port has one device below it, as PCIe has it: a card, or a switch.
    """
    number = iter(range(1, 1 << 16))
    pci: dict[str, dict[str, Any]] = {}

    def address(of: int = 0) -> str:
        return f"{next(number):04x}:00:00.{of}"

    def port(path: tuple[str, ...], numa: int | None, depth: int) -> None:
        if depth and draw(st.booleans()):
            upstream = address()
            for _ in range(draw(st.integers(1, 3))):
                port((*path, upstream, address()), numa, depth - 1)
            return
        one = address()
        for of in range(draw(st.integers(1, 2))):
            pci[f"{one[:-1]}{of}"] = function(*path, numa=numa)

    nodes = draw(st.sampled_from([(), (0,), (0, 1), (0, 8)]))
    for root in range(draw(st.integers(1, 3))):
        numa = draw(st.sampled_from([*nodes, None]))
        for _ in range(draw(st.integers(1, 2))):
            port((f"pci{root:04x}:00", address()), numa, 3)
    kinds = st.sampled_from(["gpu", "nic"])
    return machine([card(one, draw(kinds)) for one in sorted(pci)], pci, nodes=nodes)
