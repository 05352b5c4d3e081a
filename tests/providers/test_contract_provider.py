"""What every provider promises, asked of all of them alike: no kind of resource is named here."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vendors import machines

from xce_nodeagent.host import Host
from xce_nodeagent.model.instance import AttributeValue, Instance
from xce_nodeagent.model.plan import AllowDevice, HoldPort, Plan, SetEnv
from xce_nodeagent.provider import Divides, Found, Grant, PortGrant, Provider
from xce_nodeagent.providers import NAMES, all_providers
from xce_nodeagent.providers.simulated import names

HOSTS = ("", *names(), *(f"written:{name}" for name in machines.MACHINES))
TYPES = {"string": str, "int": int, "float": float, "bool": bool, "list": list}


@pytest.fixture(params=NAMES)
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    (found,) = all_providers((request.param,))
    yield found
    if close := getattr(found, "close", None):
        close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write a machine of the project's own once, and give its root."""
    return functools.cache(lambda name: machines.write(tmp_path_factory.mktemp("machine"), name))


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest, written: Callable[[str], Path]) -> Host:
    kind, _, name = request.param.rpartition(":")
    if kind:
        return Host(written(name), port_range=(20000, 20999))
    return Host(simulate=name, port_range=(20000, 20999))


def grants(provider: Provider, found: Found) -> Iterator[Grant]:
    """Each instance alone, and all together; a divisible one with a few of its parts."""
    granted = tuple(control.node for control in found.control if control.granted)
    sets = [(instance,) for instance in found.instances]
    if found.instances:
        sets.append(found.instances)
    for instances in sets:
        ports: tuple[PortGrant, ...] = ()
        if isinstance(provider, Divides):
            first = provider.parts(instances[0])[0][0]
            ports = (PortGrant(first, "http"), PortGrant(first + 2))
        for visible in ("uuid", "index"):
            yield Grant(
                instances=instances,
                ports=ports,
                control=granted,
                visible=visible,  # type: ignore[arg-type]  # a name of the closed list, as text
            )


def test_a_provider_is_found_by_its_name(provider: Provider) -> None:
    assert provider.name in NAMES
    assert provider.types


def test_an_empty_answer_has_a_reason(provider: Provider, host: Host) -> None:
    found = provider.discover(host)
    assert (found.state == "found") == (not found.reason)
    if found.state == "none":
        assert not found.instances


def test_ids_are_unique_and_fit_on_a_command_line(provider: Provider, host: Host) -> None:
    ids = [instance.id for instance in provider.discover(host).instances]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9:._-]{0,127}", one) for one in ids)


def test_instances_name_their_provider_and_one_of_its_types(provider: Provider, host: Host) -> None:
    declared = {kind.name for kind in provider.types}
    for instance in provider.discover(host).instances:
        assert instance.provider == provider.name
        assert instance.type in declared
        assert instance.healthy or instance.reason


def test_attributes_are_those_of_the_descriptor(provider: Provider, host: Host) -> None:
    kinds = {kind.name: {a.name: a.type for a in kind.attributes} for kind in provider.types}
    for instance in provider.discover(host).instances:
        for name, value in instance.attributes.items():
            assert name in kinds[instance.type], f"{instance.id}: {name} is not declared"
            check(value, kinds[instance.type][name])


def check(value: AttributeValue, declared: str) -> None:
    # bool is a subclass of int, so the types are compared as they are
    assert type(value) is TYPES[declared]
    if isinstance(value, str):
        assert value
        assert value.isprintable()


def test_overlaps_are_symmetric(provider: Provider, host: Host) -> None:
    found = {instance.id: instance for instance in provider.discover(host).instances}
    for instance in found.values():
        assert instance.id not in instance.overlaps
        for other in instance.overlaps:
            assert instance.id in found[other].overlaps


def test_nodes_are_devices_and_control_nodes_are_nobodys_own(
    provider: Provider, host: Host
) -> None:
    found = provider.discover(host)
    own = {node for instance in found.instances for node in instance.devices}
    control = {control.node for control in found.control}
    assert not own & control
    assert len({(n.type, n.major, n.minor) for n in own | control}) == len(own | control)
    for node in own | control:
        assert node.path.startswith("/dev/")
        assert 0 < node.major < 1 << 12
        assert 0 <= node.minor < 1 << 20


def test_the_same_host_gives_the_same_answer(provider: Provider, host: Host) -> None:
    assert provider.discover(host) == provider.discover(host)


def test_a_plan_is_a_function_of_its_grant(provider: Provider, host: Host) -> None:
    found = provider.discover(host)
    for grant in grants(provider, found):
        assert provider.plan(grant) == provider.plan(grant)


def test_a_plan_gives_what_was_granted_and_nothing_else(provider: Provider, host: Host) -> None:
    found = provider.discover(host)
    for grant in grants(provider, found):
        plan = provider.plan(grant)
        allowed = {step.node for step in plan.steps if isinstance(step, AllowDevice)}
        own = {node for instance in grant.instances for node in instance.devices}
        assert own <= allowed <= own | set(grant.control)
        assert not allowed & {control.node for control in found.control if not control.granted}
        held = [step for step in plan.steps if isinstance(step, HoldPort)]
        assert [(step.port, step.name) for step in held] == [(p.port, p.name) for p in grant.ports]
        assert kinds(plan) <= {AllowDevice, SetEnv, HoldPort}


def kinds(plan: Plan) -> set[type]:
    return {type(step) for step in plan.steps}


def test_a_plan_names_no_device_twice(provider: Provider, host: Host) -> None:
    for grant in grants(provider, provider.discover(host)):
        nodes = [s.node for s in provider.plan(grant).steps if isinstance(s, AllowDevice)]
        assert len(nodes) == len(set(nodes))


def test_variables_can_be_exported_by_any_shell(provider: Provider, host: Host) -> None:
    for grant in grants(provider, provider.discover(host)):
        for name, value in provider.plan(grant).environment.items():
            assert re.fullmatch(r"[A-Z_][A-Z0-9_]*", name)
            assert "\n" not in value
            assert "\0" not in value


def test_odd_names_of_hardware_do_not_break_the_environment(provider: Provider, host: Host) -> None:
    found = provider.discover(host)
    for instance in found.instances:
        odd = Instance(
            id=instance.id,
            type=instance.type,
            provider=instance.provider,
            attributes={
                key: f"{value}\nX=1\0" if isinstance(value, str) and key != "port_range" else value
                for key, value in instance.attributes.items()
            },
        )
        for value in provider.plan(Grant(instances=(odd,))).environment.values():
            assert value.isprintable()


def test_parts_rise_and_what_is_in_use_is_among_them(host: Host) -> None:
    divisible = [provider for provider in all_providers() if isinstance(provider, Divides)]
    assert divisible
    for provider in divisible:
        for instance in provider.discover(host).instances:  # type: ignore[attr-defined]  # it is both
            parts = provider.parts(instance)
            numbers = [number for part in parts for number in part]
            assert numbers == sorted(set(numbers))
            assert provider.in_use(host, instance) <= set(numbers)
