"""What a job's environment says: each variable with the source of the fact behind it.

Providers and the planner take their variables from here, so that two providers of one kind (real
and simulated cards) cannot differ. Values never hold a newline or a NUL.

A job gets `hidden()` first, then what its grants add: `combined` says which value wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.plan import SetEnv

Visible = Literal["uuid", "index"]

NO_LEVEL_ZERO_DEVICE = "9999"
"""A mask that names no device.

Level Zero hides nothing for an empty ZE_AFFINITY_MASK: Intel's driver returns early for "" and
"default" (compute-runtime, shared/source/execution_environment/execution_environment.cpp,
parseAffinityMask). It skips an index beyond the last device, and what no entry names is hidden.
The number is above any count of tiles, and small: MPICH sizes an array by the largest index.
"""

_HIDDEN = {
    # CUDA C Programming Guide, "CUDA Environment Variables": only what is listed is visible, so
    # set and empty hides all. HIP also reads it, but only when it is not empty (clr,
    # rocclr/device/rocm/rocdevice.cpp), so it does no harm to a job with AMD cards.
    "CUDA_VISIBLE_DEVICES": "",
    # NVIDIA Container Toolkit: empty and unset mean the image's own default; void means none.
    "NVIDIA_VISIBLE_DEVICES": "void",
    # ROCR-Runtime, core/runtime/amd_filter_device.cpp, SelectZeroDevices: set and empty means
    # none (core/util/flag.h asks whether it is set, not whether it has a value).
    "ROCR_VISIBLE_DEVICES": "",
    "ZE_AFFINITY_MASK": NO_LEVEL_ZERO_DEVICE,
}

_HIDDEN_STEPS = tuple(SetEnv(name, value) for name, value in _HIDDEN.items())

_LISTS = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
        "XCE_GPU_UUIDS",
        "XCE_GPU_INDEXES",
        "XCE_GPU_MINORS",
        "HABANA_VISIBLE_MODULES",
        "XCE_ACCELERATORS",
        "XCE_ACCELERATOR_NODES",
        "XCE_NICS",
        "NCCL_IB_HCA",
        "NCCL_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
        "GLOO_SOCKET_IFNAME",
        "XCE_PORTS",
    }
)
"""Variables that are comma lists: what two providers say of them is joined."""


_LISTS_BEGIN = ("XCE_INSTANCES_", "XCE_NODES_")


def _is_list(variable: str) -> bool:
    return variable in _LISTS or variable.startswith(_LISTS_BEGIN)


def hidden() -> tuple[SetEnv, ...]:
    """Give the values that hide every accelerator, for a job that got none."""
    return _HIDDEN_STEPS


def combined(steps: Iterable[SetEnv]) -> tuple[SetEnv, ...]:
    """Give one step for each variable, sorted: lists are joined, of the others the last wins.

    A value of `hidden()` gives way to any grant's. A job that has cards or NICs of two providers
    (real and simulated ones) so sees all of them.
    """
    values: dict[str, str] = {}
    for step in steps:
        before = values.get(step.name, "")
        if _is_list(step.name) and before not in ("", _HIDDEN.get(step.name)):
            # NCCL's leading = stands once, in front of the whole list.
            tail = step.value.removeprefix("=") if before.startswith("=") else step.value
            values[step.name] = f"{before},{tail}" if tail else before
        else:
            values[step.name] = step.value
    return tuple(SetEnv(name, value) for name, value in sorted(values.items()))


def nvidia(
    instances: Sequence[Instance], visible: Visible = "uuid", *, contained: bool = True
) -> tuple[SetEnv, ...]:
    """Give what CUDA needs to use these cards and slices (types gpu, mig, mps).

    `visible` is the site's policy: some programs read CUDA_VISIBLE_DEVICES as numbers only. UUIDs
    are always whole: CUDA takes a prefix, but newer releases refuse short ones in lists. CUDA
    counts the cards that the process can open, in CUDA_DEVICE_ORDER, so under the fence
    (`contained`) the numbers count the job's own cards from 0; the host's numbers are in
    XCE_GPU_INDEXES. A MIG slice has no number, so a job with one gets UUIDs. A card is named once,
    however many shares of it the job has.
    """
    granted = _in_bus_order(instances)
    cards = list({card.text("uuid") or card.id: card for card in reversed(granted)}.values())[::-1]
    uuids = [card.text("uuid") or card.id for card in cards]
    indexes = [card.text("index") for card in cards]
    if visible == "uuid" or any(card.type == "mig" for card in cards) or "" in indexes:
        shown = uuids
    elif contained:
        shown = [str(number) for number in range(len(cards))]
    else:
        shown = indexes
    return _steps(
        {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the default, FASTEST_FIRST, is not nvidia-smi's
            "CUDA_VISIBLE_DEVICES": ",".join(shown),
            # It is read outside the fence, by the container's runtime: UUIDs fit both policies.
            "NVIDIA_VISIBLE_DEVICES": ",".join(uuids),
            **_cards(cards, uuids, indexes),
            **_mps(granted, uuids),
        }
    )


def _mps(granted: Sequence[Instance], uuids: Sequence[str]) -> dict[str, str]:
    """Give what a client of MPS needs for its shares (CUDA MPS, "Environment Variables").

    The limit of threads is one for all cards of a process, so of several cards the least counts,
    also where the job has others as a whole. Memory is limited by card, as CUDA counts them.
    """
    percents: dict[str, int] = {}
    limits: dict[str, int] = {}
    shares = [one for one in granted if one.type == "mps"]
    for share in shares:
        card = share.text("uuid") or share.id
        percents[card] = percents.get(card, 0) + share.number("mps_percent", 0)
        limits[card] = limits.get(card, 0) + share.number("memory_bytes", 0)
    if not shares:
        return {}
    values = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(min(percents.values()))}
    if where := shares[0].text("mps_pipe_directory"):
        values["CUDA_MPS_PIPE_DIRECTORY"] = where
    memory = [
        f"{place}={limits[card] >> 20}M"
        for place, card in enumerate(uuids)
        if limits.get(card, 0) >> 20
    ]
    if memory:
        values["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(memory)
    return values


def amd(
    instances: Sequence[Instance], visible: Visible = "uuid", *, contained: bool = True
) -> tuple[SetEnv, ...]:
    """Give what ROCm needs to use these cards.

    ROCR takes `GPU-` with 16 hexadecimal digits (amd_filter_device.cpp, ProcessUuidToken) or
    numbers, and stops at the first token that fits no card, or two. Consumers' cards have no
    UUID, and parts of a card may have the card's: a job with one of them gets numbers. KFD hides
    cards whose render node the device cgroup denies (amdkfd, kfd_devcgroup_check_permission), so
    numbers count from 0 under the fence.
    """
    cards = _in_bus_order(instances)
    uuids = [card.text("uuid") or card.id for card in cards]
    indexes = [card.text("index") for card in cards]
    if visible == "uuid" and all(card.text("uuid") for card in cards):
        shown = uuids
    elif contained:
        shown = [str(number) for number in range(len(cards))]
    else:
        shown = uuids if "" in indexes else indexes
    return _steps(
        {"ROCR_VISIBLE_DEVICES": ",".join(shown), **_cards(cards, uuids, indexes)},
    )


def level_zero(instances: Sequence[Instance], *, contained: bool = True) -> tuple[SetEnv, ...]:
    """Give what Level Zero needs to use these Intel cards.

    It knows numbers only, and counts the cards whose render node it can open: under the fence the
    job's own, from 0. By default each tile is a device with a number (ZE_FLAT_DEVICE_HIERARCHY is
    FLAT); where a program asks for whole cards, the numbers beyond the last are skipped. Outside
    of the fence the numbers are the host's, so cards are asked for, in the order of the bus
    (Level Zero specification, "Environment Variables").
    """
    cards = _in_bus_order(instances)
    indexes = [card.text("index") for card in cards]
    values = {}
    if contained or "" in indexes:
        tiles = sum(max(card.number("tiles"), 1) for card in cards)
        values["ZE_AFFINITY_MASK"] = ",".join(map(str, range(tiles)))
    else:
        values["ZE_FLAT_DEVICE_HIERARCHY"] = "COMPOSITE"
        values["ZE_ENABLE_PCI_ID_DEVICE_ORDER"] = "1"
        values["ZE_AFFINITY_MASK"] = ",".join(indexes)
    return _steps(values)


def accelerators(instances: Sequence[Instance]) -> tuple[SetEnv, ...]:
    """Name accelerators that are no GPUs: their ids, and their device nodes.

    Habana's library takes the numbers of its modules (Gaudi documentation, "Multiple Workloads on
    a Single Docker", HABANA_VISIBLE_MODULES).
    """
    cards = sorted(instances, key=lambda card: (card.text("pci_address"), card.id))
    values = {
        "XCE_ACCELERATORS": ",".join(card.id for card in cards),
        "XCE_ACCELERATOR_NODES": ",".join(node.path for card in cards for node in card.devices),
    }
    modules = [card.text("module_id") for card in cards if card.text("vendor") == "habana"]
    if modules and "" not in modules:
        values["HABANA_VISIBLE_MODULES"] = ",".join(modules)
    return _steps(values)


def gpus(instances: Sequence[Instance]) -> tuple[SetEnv, ...]:
    """Give our own lists of cards; all that there is for those whose library we do not know."""
    return _steps(_named(_in_bus_order(instances)))


def nics(instances: Sequence[Instance]) -> tuple[SetEnv, ...]:
    """Give what NCCL, UCX and Gloo need to use these interfaces and no others.

    NCCL matches names by prefix unless the list starts with `=` (NCCL User Guide, "Environment
    Variables"): mlx5_1 would take mlx5_10 as well. UCX writes an RDMA device as `device:port`, and
    any other interface by its name (UCX FAQ, UCX_NET_DEVICES). What is part of a bond has no
    address of its own, so sockets are for the bond.
    """
    rdma = [
        f"{nic.text('rdma_device')}:{nic.number('rdma_port', 1)}"
        for nic in instances
        if nic.text("rdma_device")
    ]
    named = {nic.id: nic.text("bond") or nic.text("netdev") for nic in instances}
    names = list(dict.fromkeys(filter(None, named.values())))
    plain = [named[nic.id] for nic in instances if not nic.text("rdma_device")]
    plain = list(dict.fromkeys(filter(None, plain)))
    values = {"XCE_NICS": ",".join(nic.id for nic in instances)}
    if rdma:
        values["NCCL_IB_HCA"] = "=" + ",".join(rdma)
    if names:
        values["NCCL_SOCKET_IFNAME"] = "=" + ",".join(names)
        values["GLOO_SOCKET_IFNAME"] = ",".join(names)
    if rdma or plain:
        values["UCX_NET_DEVICES"] = ",".join(rdma + plain)
    return _steps(values)


def declared(instances: Sequence[Instance]) -> tuple[SetEnv, ...]:
    """Give what is told of instances that a site declared: by type, and its own variables.

    What several instances say of one variable is a comma list, in their order, each value once.
    Cards and NICs are in our lists of these as well.
    """
    kinds = {kind: [one for one in instances if one.type == kind] for kind in _types(instances)}
    values: dict[str, str] = {}
    for kind, own in kinds.items():
        values[f"XCE_INSTANCES_{kind.upper()}"] = ",".join(one.id for one in own)
        values[f"XCE_NODES_{kind.upper()}"] = ",".join(n.path for one in own for n in one.devices)
    said: dict[str, dict[str, None]] = {}
    for one in instances:
        variables = one.attributes.get("environment")
        for text in variables if isinstance(variables, list) else ():
            name, _, value = str(text).partition("=")
            said.setdefault(name, {})[value] = None
    steps = _steps(values | {name: ",".join(told) for name, told in said.items()})
    known = {"gpu": gpus, "nic": nics, "accelerator": accelerators}
    return (*(step for kind in kinds if kind in known for step in known[kind](kinds[kind])), *steps)


def _types(instances: Iterable[Instance]) -> list[str]:
    return sorted({one.type for one in instances})


def ports(granted: Sequence[tuple[int, str]]) -> tuple[SetEnv, ...]:
    """Give the ports, in the order granted: (port, name), the name empty where there is none.

    XCE_PORTS has all of them, rising, neighbours as FIRST-LAST; XCE_PORT_0, XCE_PORT_1, ... each
    in order; XCE_PORT_<NAME> (upper case) those with a name, of which the first wins.
    """
    values = {"XCE_PORTS": ranges(port for port, _ in granted)}
    for place, (port, _) in enumerate(granted):
        values[f"XCE_PORT_{place}"] = str(port)
    for port, name in granted:
        if name:
            values.setdefault(f"XCE_PORT_{name.upper()}", str(port))
    return _steps(values)


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers as Linux writes a CPU list: `20000-20003,20010`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)


def _in_bus_order(instances: Sequence[Instance]) -> list[Instance]:
    """Sort as CUDA counts under CUDA_DEVICE_ORDER=PCI_BUS_ID; slices of a card by their ids."""
    return sorted(
        instances,
        key=lambda card: (
            card.number("index", 1 << 30),
            card.text("pci_address"),
            card.number("gpu_instance"),
            card.number("compute_instance"),
            card.id,
        ),
    )


def _named(cards: Sequence[Instance]) -> dict[str, str]:
    uuids = [card.text("uuid") or card.id for card in cards]
    return _cards(cards, uuids, [card.text("index") for card in cards])


def _cards(
    cards: Sequence[Instance], uuids: Sequence[str], indexes: Sequence[str]
) -> dict[str, str]:
    """Give the three lists of ours: the host's own names of the cards, in one order.

    A number that the hardware does not tell is empty, so that the lists stay parallel.
    """
    return {
        "XCE_GPU_UUIDS": ",".join(uuids),
        "XCE_GPU_INDEXES": ",".join(indexes),
        "XCE_GPU_MINORS": ",".join(card.text("minor") for card in cards),
    }


def _steps(values: dict[str, str]) -> tuple[SetEnv, ...]:
    """Make the steps. What hardware and drivers call themselves may hold control characters."""
    return tuple(SetEnv(name, _clean(value)) for name, value in values.items())


def _clean(value: str) -> str:
    return value if value.isprintable() else "".join(filter(str.isprintable, value))
