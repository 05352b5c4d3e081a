"""The resource types that this project knows by name, described once.

Several providers find instances of one type (an NVIDIA and a simulated card are both `gpu`), and
providers do not know each other, so the descriptors stand here, below all of them.
"""

from __future__ import annotations

from xce_nodeagent.model.instance import Attribute, ResourceType

COMMON = (
    Attribute("vendor", "string", "who made it"),
    Attribute("model", "string", "the product's name"),
    Attribute("pci_address", "string", "domain:bus:device.function"),
    Attribute("pcie_root", "string", "the root port's host bridge, as sysfs names it"),
    Attribute("pcie_switch", "string", "the nearest PCIe switch's upstream port"),
    Attribute("numa_node", "int", "the NUMA node nearest to it"),
    Attribute("local_cpus", "string", "the CPUs nearest to it, as a Linux CPU list"),
    Attribute("environment", "list", "variables that a job with it gets, as NAME=VALUE"),
)

_GPU = (
    Attribute("uuid", "string", "the vendor's unique id"),
    Attribute("index", "int", "place among the vendor's cards as its library counts; no identity"),
    Attribute("minor", "int", "minor number of its device node; not an identity"),
    Attribute("memory_bytes", "int", "device memory", unit="bytes"),
    Attribute("multiprocessors", "int", "streaming multiprocessors, or compute units"),
    Attribute("driver_version", "string", "version of the kernel driver"),
    Attribute("cuda_version", "string", "newest CUDA that the driver can run, major.minor"),
    Attribute("compute_capability", "string", "CUDA compute capability, major.minor"),
    Attribute("ecc_mode", "string", "memory error correction: on or off"),
    Attribute("nvlink_domain", "string", "instances with one value reach each other by NVLink"),
)

_CARD = (
    Attribute("serial", "string", "the board's serial number"),
    Attribute("row_remap_pending", "bool", "true where memory rows are replaced at the next reset"),
    Attribute("row_remap_failed", "bool", "true where a bad memory row could not be replaced"),
    Attribute("power_limit_watts", "int", "what the card may draw", unit="W"),
    Attribute("persistence_mode", "bool", "true where the driver stays loaded for an idle card"),
    Attribute("compute_mode", "string", "default, exclusive_process or prohibited"),
    Attribute("module_id", "int", "place of the module on its baseboard"),
    Attribute("nvlink_count", "int", "NVLinks that are up"),
    Attribute("fabric_state", "string", "NVLink fabric: not_started, in_progress or completed"),
    Attribute("fabric_cluster", "string", "UUID of the NVLink fabric's cluster; zeros: one host"),
    Attribute("fabric_clique", "int", "cards of one cluster and clique reach each other by NVLink"),
    Attribute("slot_number", "int", "slot of the tray in its chassis, on rack-scale machines"),
    Attribute("tray_index", "int", "number of the compute tray in its chassis"),
    Attribute("host_id", "int", "number of the host in its tray"),
    Attribute("gfx_target", "string", "AMD's name of the instruction set, such as gfx942"),
    Attribute("xgmi_hive", "string", "instances with one value reach each other by XGMI"),
    Attribute("compute_partition", "string", "how the card is divided: SPX, DPX, TPX, QPX, CPX"),
    Attribute("available_compute_partitions", "list", "how its driver could divide the card"),
    Attribute("memory_partition", "string", "how its memory is divided: NPS1, NPS2, NPS4, NPS8"),
    Attribute("render_minor", "int", "minor number of its DRM render node; not an identity"),
    Attribute("tiles", "int", "tiles of an Intel card; each is a device to Level Zero"),
)

_SLICE = (
    Attribute("mig_profile", "string", "MIG profile, such as 1g.10gb, or 1c.3g.40gb of a part"),
    Attribute("gpu_instance", "int", "MIG GPU instance id"),
    Attribute("compute_instance", "int", "MIG compute instance id"),
    Attribute("placement", "list", "its GPU instance's first memory slice on the card, and size"),
    Attribute("compute_placement", "list", "its first compute slice in its GPU instance, and size"),
    Attribute("memory_shared", "bool", "true where other slices use the same memory"),
)

GPU = ResourceType(name="gpu", unit="card", meaning="a whole GPU", attributes=COMMON + _GPU + _CARD)
MIG = ResourceType(
    name="mig",
    unit="slice",
    meaning="a MIG slice of a GPU (a compute instance)",
    attributes=COMMON + _GPU + _SLICE,
)
GPU_INSTANCE = ResourceType(
    name="gi",
    unit="GPU instance",
    meaning="a MIG GPU instance that is no slice by itself: several share it, or none is in it",
    attributes=COMMON + _GPU + _SLICE,
)
MPS = ResourceType(
    name="mps",
    unit="share",
    meaning="a share of a GPU under CUDA MPS",
    attributes=(
        *COMMON,
        *_GPU,
        Attribute("mps_percent", "int", "share of the card's threads", unit="%"),
        Attribute("mps_pipe_directory", "string", "where its control daemon listens"),
    ),
)
NIC = ResourceType(
    name="nic",
    unit="function",
    meaning="a network interface, by its PCI function",
    attributes=(
        *COMMON,
        Attribute("netdev", "string", "name of the network interface"),
        Attribute("mac", "string", "hardware address"),
        Attribute("speed_mbps", "int", "link speed", unit="Mbit/s"),
        Attribute("link_layer", "string", "ethernet or infiniband"),
        Attribute("state", "string", "operational state, as RFC 2863 names it"),
        Attribute("rdma_device", "string", "name of the RDMA device on this function"),
        Attribute("rdma_port", "int", "port of the RDMA device"),
        Attribute("rail", "int", "number of the rail it belongs to"),
        Attribute("physical_function", "string", "of a virtual function: its physical one"),
        Attribute("default_route", "bool", "true where the host's own default route goes out"),
        Attribute("nic_kind", "string", "ethernet, infiniband, roce, efa, slingshot or omnipath"),
        Attribute("carrier", "bool", "true where the other end is heard"),
        Attribute("vf_count", "int", "of a physical function: how many virtual ones it has now"),
        Attribute("bond", "string", "name of the bond or team that it is in"),
        Attribute("vlans", "list", "names of the VLANs on it, or on its bond"),
        Attribute("firmware_version", "string", "version of the RDMA device's firmware"),
        Attribute("board_id", "string", "the vendor's own name of the board, from its firmware"),
    ),
)
ACCELERATOR = ResourceType(
    name="accelerator",
    unit="card",
    meaning="a card that computes and is no GPU",
    attributes=(
        *COMMON,
        Attribute("driver_version", "string", "version of the kernel driver"),
        Attribute("serial", "string", "serial number of the board"),
        Attribute("module_id", "int", "number of the module on its baseboard"),
    ),
)
PORTS = ResourceType(
    name="ports",
    unit="port",
    meaning="a range of TCP and UDP ports; a job holds some of them",
    divisible=True,
    attributes=(
        Attribute("port_range", "string", "first and last port"),
        Attribute("foreign_listeners", "string", "ports in use by processes outside any job"),
        Attribute("foreign_count", "int", "how many those are"),
    ),
)
