"""The resource types that this project knows by name, described once.

Several providers find instances of one type (an NVIDIA and a simulated card are both `gpu`), and
providers do not know each other, so the descriptors stand here, below all of them.
"""

from __future__ import annotations

from xce_nodeagent.model.instance import Attribute, ResourceType

_COMMON = (
    Attribute("vendor", "string", "who made it"),
    Attribute("model", "string", "the product's name"),
    Attribute("pci_address", "string", "domain:bus:device.function"),
    Attribute("pcie_root", "string", "the root port's host bridge, as sysfs names it"),
    Attribute("pcie_switch", "string", "the nearest PCIe switch's upstream port"),
    Attribute("numa_node", "int", "the NUMA node nearest to it"),
    Attribute("local_cpus", "string", "the CPUs nearest to it, as a Linux CPU list"),
)

_GPU = (
    Attribute("uuid", "string", "the vendor's unique id"),
    Attribute("index", "int", "place among the vendor's cards as its library counts; no identity"),
    Attribute("minor", "int", "minor number of its device node; not an identity"),
    Attribute("memory_bytes", "int", "device memory", unit="bytes"),
    Attribute("driver_version", "string", "version of the kernel driver"),
    Attribute("compute_capability", "string", "CUDA compute capability, major.minor"),
    Attribute("nvlink_domain", "string", "instances with one value reach each other by NVLink"),
    Attribute("serial", "string", "serial number of the board"),
    Attribute("module_id", "int", "number of the module on its baseboard"),
    Attribute("multiprocessors", "int", "streaming multiprocessors, or compute units"),
    Attribute("gfx_target", "string", "AMD's name of the instruction set, such as gfx942"),
    Attribute("xgmi_hive", "string", "instances with one value reach each other by XGMI"),
    Attribute("compute_partition", "string", "how the card is divided: SPX, DPX, TPX, QPX, CPX"),
    Attribute("memory_partition", "string", "how its memory is divided: NPS1, NPS2, NPS4, NPS8"),
    Attribute("render_minor", "int", "minor number of its DRM render node; not an identity"),
    Attribute("tiles", "int", "tiles of an Intel card; each is a device to Level Zero"),
)

_SLICE = (
    Attribute("mig_profile", "string", "MIG profile, such as 1g.10gb"),
    Attribute("gpu_instance", "int", "MIG GPU instance id"),
    Attribute("compute_instance", "int", "MIG compute instance id"),
)

GPU = ResourceType(name="gpu", unit="card", meaning="a whole GPU", attributes=_COMMON + _GPU)
MIG = ResourceType(
    name="mig", unit="slice", meaning="a MIG slice of a GPU", attributes=_COMMON + _GPU + _SLICE
)
MPS = ResourceType(
    name="mps",
    unit="share",
    meaning="a share of a GPU under CUDA MPS",
    attributes=(
        *_COMMON,
        *_GPU,
        Attribute("mps_percent", "int", "share of the card's threads", unit="%"),
    ),
)
NIC = ResourceType(
    name="nic",
    unit="function",
    meaning="a network interface, by its PCI function",
    attributes=(
        *_COMMON,
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
    ),
)
ACCELERATOR = ResourceType(
    name="accelerator",
    unit="card",
    meaning="a card that computes and is no GPU",
    attributes=(
        *_COMMON,
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
