"""Documents of declared instances: what is read of them, and what is said of their faults."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.model.declaration import allowed, schema
from xce_nodeagent.model.declared import (
    FAULTS_LIMIT,
    INSTANCES_LIMIT,
    SIZE_LIMIT,
    TYPES_LIMIT,
    read,
    read_report,
)

VALIDATOR = jsonschema.Draft202012Validator(schema())

GOOD = """
[type.fpga]
unit = "card"
meaning = "an Alveo U250"
attributes = { shell = { type = "string", meaning = "what is flashed" } }

[[instance]]
id = "fpga0"
type = "fpga"
nodes = ["/dev/xdma0_user", "/dev/xdma0_control"]
attributes = { shell = "xdma", revision = 3, hot = false, ratio = 0.5, banks = [0, 1] }
environment = { FPGA_NODE = "/dev/xdma0_user" }
pci_address = "0000:3b:00.0"

[[instance]]
id = "dongle"
type = "licence"
healthy = false
reason = "lent to the other lab"
"""


def one(**keys):
    table = {"id": "a", "type": "fpga", **keys}
    return {"instance": [{name: value for name, value in table.items() if value is not None}]}


def test_files_and_reports_are_of_one_form():
    found = read({"good.toml": GOOD})
    assert not found.faults
    assert [instance.id for instance in found.instances] == ["fpga0", "dongle"]
    told = {kind.name: {a.name: a.type for a in kind.attributes} for kind in found.types}
    assert set(told) == {"fpga", "licence"}
    own = ("shell", "revision", "hot", "ratio", "banks")
    assert [told["fpga"][name] for name in own] == ["string", "int", "bool", "float", "list"]
    values = tomllib.loads(GOOD)
    assert read_report(json.dumps(values).encode()) == found
    VALIDATOR.validate(values)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (one(id=None), "instance 1: id: missing"),
        (one(id="a b"), "instance 1 ('a b'): id: 'a b': expected 1 to 128 letters"),
        (one(type="FPGA"), "type: 'FPGA': expected"),
        (one(type="mig"), "type: mig: expected a type of the site's own"),
        (one(type="ports"), "type: ports: expected"),
        (one(nodes=["/etc/x"]), "nodes: ['/etc/x']: expected a list of paths"),
        (one(nodes=["/dev/../tmp/x"]), "nodes:"),
        (one(nodes=["/dev/a,b"]), "nodes:"),
        (one(nodes=["/dev/a", "/dev/a"]), "nodes: expected each once"),
        (one(nodes="/dev/a"), "nodes: '/dev/a': expected a list"),
        (one(attributes={"x": {"y": 1}}), "attributes:"),
        (one(attributes={"x": "a\nb"}), "attributes: x = 'a\\nb': expected text on a line"),
        (one(attributes={"X": 1}), "attributes:"),
        (one(attributes={"x": 1 << 60}), "attributes: x = 1152921504606846976"),
        (one(attributes={"numa_node": 1}), "numa_node: it is no attribute to set"),
        (one(attributes={"environment": ["A=1"]}), "environment: it is no attribute to set"),
        (one(attributes={"vendor": 1}), "vendor = 1: expected a value of type string"),
        (one(environment={"LD_PRELOAD": "x"}), "LD_PRELOAD: programs, or this agent, go by it"),
        (one(environment={"PATH": "x"}), "PATH: programs"),
        (one(environment={"BASH_ENV": "x"}), "BASH_ENV: programs"),
        (one(environment={"XCE_JOB_ID": "x"}), "XCE_JOB_ID: programs"),
        (one(environment={"CUDA_VISIBLE_DEVICES": "x"}), "CUDA_VISIBLE_DEVICES: programs"),
        (one(environment={"lower": "x"}), "environment:"),
        (one(environment={"A": "x\ny"}), "environment:"),
        (one(environment={"A": "x\0"}), "environment:"),
        (one(overlaps=["a"]), "overlaps: it is named by itself"),
        (one(parent="a"), "overlaps: it is named by itself"),
        (one(numa_node=True), "numa_node: True: expected a NUMA node"),
        (one(pci_address="3b:00.0"), "pci_address: '3b:00.0': expected a PCI address"),
        (one(healthy=False), "healthy: false: expected a reason"),
        (one(colour="red"), "colour: unknown key"),
        ({"instances": []}, "instances: unknown; there are instance and type"),
        ({"instance": {}}, "instance: expected a list"),
        ({"instance": [1]}, "instance 1: expected a table"),
        ({"type": {"gpu": {}}}, "type gpu: it is described already"),
        ({"type": {"A": {}}}, "type A: 'A': expected a lower-case letter"),
        ({"type": {"a": {"attributes": {"x": {"type": "number"}}}}}, "type a: attributes:"),
        ([], "the document: expected a table"),
    ],
)
def test_each_fault_is_told(wrong, said):
    found = read_report(json.dumps(wrong).encode())
    assert not found.instances
    assert said in found.faults[0]
    assert found.faults[0].isprintable()


def test_every_fault_of_a_file_is_told_with_its_line():
    text = '[[instance]]\nid = "a"\ntype = "b"\nnodes = ["/x"]\n\n[[instance]]\nid = "a"\n'
    text += 'type = "b"\n[instance.environment]\nPATH = "x"\n[instance.attributes]\nX = 1\n'
    faults = read({"f.toml": text}).faults
    assert [fault.partition(": ")[0] for fault in faults] == [
        "f.toml:4",
        "f.toml:11",
        "f.toml:9",
        "f.toml:7",
    ]


def test_a_file_with_a_fault_costs_nothing_of_the_others():
    again = GOOD.replace("[type.fpga]", "[type.other]").replace('id = "dongle"', 'id = "dongle2"')
    for bad, said in (
        (again, "an instance with this id is declared already"),
        ("[type.fpga]\n", "type fpga: it is described already"),
        ("[[instance]\n", "not TOML"),
        ('[[instance]]\nid="x"\ntype="y"\nnodes=["/dev/xdma0_user"]', "it is a node of fpga0 as"),
        ('[[instance]]\nid="x"\ntype="fpga"\nattributes={shell=1}', "shell = 1: expected a value"),
    ):
        found = read({"a.toml": GOOD, "b.toml": bad})
        assert [one.id for one in found.instances] == ["fpga0", "dongle"]
        assert said in found.faults[0]
        assert found.faults[0].startswith("b.toml")


def test_two_instances_of_one_device_say_so():
    half = '[[instance]]\nid = "{}"\ntype = "half"\nnodes = ["/dev/a"]\n{}\n'
    assert read({"f.toml": half.format("a", "") + half.format("b", "")}).faults
    assert not read({"f.toml": half.format("a", 'overlaps=["b"]') + half.format("b", "")}).faults


def test_there_is_an_end_of_it():
    many = [{"id": f"a{n}", "type": "b"} for n in range(INSTANCES_LIMIT + 1)]
    assert (
        "expected at most 256 instances"
        in read_report(json.dumps({"instance": many}).encode()).faults[0]
    )
    assert not read_report(json.dumps({"instance": many[1:]}).encode()).faults
    half = "".join(f'[[instance]]\nid = "a{{0}}{n}"\ntype = "b"\n' for n in range(129))
    found = read({"a.toml": half.format("a"), "b.toml": half.format("b")})
    assert (len(found.instances), len(found.faults)) == (129, 1)
    types = {f"t{n}": {} for n in range(TYPES_LIMIT + 1)}
    assert (
        "expected at most 64 types" in read_report(json.dumps({"type": types}).encode()).faults[0]
    )
    wrong = [{f"x{n}": 1} for n in range(INSTANCES_LIMIT)]
    faults = read_report(json.dumps({"instance": wrong}).encode()).faults
    assert len(faults) == FAULTS_LIMIT + 1
    assert faults[-1] == f"the document: {3 * INSTANCES_LIMIT - FAULTS_LIMIT} more faults"
    assert read_report(b" " * (SIZE_LIMIT + 1)).faults == (f"expected at most {SIZE_LIMIT} bytes",)
    for deep in (b"[" * SIZE_LIMIT, b'{"instance":' * 1000 + b"1" + b"}" * 1000, b"\xff{}", b""):
        assert (
            read_report(deep).faults[0].startswith(("expected JSON", "instance: expected a list"))
        )


@pytest.mark.parametrize(
    "number", ["1" * 5000, "0x" + "f" * 5000, str(1 << 63), "[" * 300 + "]" * 300, "1979-05-27"]
)
def test_numbers_and_lists_that_are_too_long_are_faults(number):
    good = {"b.toml": '[[instance]]\nid = "b"\ntype = "c"\n'}
    for key in ("numa_node", "id", "attributes.x", "unknown", "nodes"):
        found = read({**good, "a.toml": f'[[instance]]\nid = "a"\ntype = "c"\n{key} = {number}\n'})
        assert [one.id for one in found.instances] == ["b"]
        assert found.faults


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
TABLE = st.fixed_dictionaries(
    {},
    optional={
        "id": st.from_regex(r"[a-c]", fullmatch=True) | JSON,
        "type": st.sampled_from(["fpga", "gpu", "mig", "x y"]) | JSON,
        "nodes": st.lists(st.sampled_from(["/dev/a", "/dev/b", "/etc/x"]), max_size=3) | JSON,
        "attributes": st.dictionaries(st.sampled_from(["vendor", "x", "X"]), JSON, max_size=3)
        | JSON,
        "environment": st.dictionaries(st.sampled_from(["A", "PATH", "b"]), st.text(), max_size=2),
        "overlaps": st.lists(st.sampled_from(["a", "b", ""]), max_size=2) | JSON,
        "healthy": JSON,
        "what": JSON,
    },
)


@given(
    st.fixed_dictionaries(
        {"instance": st.lists(TABLE, max_size=4) | JSON},
        optional={"type": JSON | st.just({"fpga": {"unit": "card"}})},
    )
)
def test_whatever_is_printed_is_a_report_or_has_a_fault(values):
    """And what has none is as the published schema says."""
    found = read_report(json.dumps(values).encode())
    assert bool(found.faults) or VALIDATOR.is_valid(values)
    if found.faults:
        assert found.instances == ()
        assert all(fault.isprintable() and len(fault) < 400 for fault in found.faults)
    ids = [instance.id for instance in found.instances]
    assert len(ids) == len(set(ids))
    assert {one.type for one in found.instances} <= {kind.name for kind in found.types} | {
        "gpu",
        "nic",
        "accelerator",
    }


@given(st.binary(max_size=300))
def test_no_bytes_are_an_accident(data):
    read_report(data)
    read({"f.toml": data.decode("latin-1")})


def test_patterns_go_over_no_slash():
    assert allowed("/dev/xdma0_user", ["/dev/xdma*"])
    assert not allowed("/dev/xdma/0", ["/dev/xdma*"])
    assert allowed("/dev/xdma/0", ["/dev/xdma/?"])
    assert not allowed("/dev/sda", ["/dev/xdma*"])


def test_the_schema_that_is_shipped_is_this_one():
    shipped = files("xce_nodeagent").joinpath("declared.schema.json").read_text("utf-8")
    assert json.loads(shipped) == json.loads(json.dumps(schema()))
