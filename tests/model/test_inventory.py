"""Generations and digests: what the hardware is, and nothing else."""

from __future__ import annotations

import hashlib
import json

import msgspec
from msgspec import structs

from xce_nodeagent.model.instance import Holder, Instance
from xce_nodeagent.model.inventory import Inventory, advance, digest, with_holders
from xce_nodeagent.model.resource import GPU


def machine(*ids: str, boot: str = "b1", **attributes: str) -> Inventory:
    return Inventory(
        source="local",
        node="n",
        boot_id=boot,
        types=(GPU,),
        instances=tuple(
            Instance(id=i, type="gpu", provider="p", attributes=dict(attributes)) for i in ids
        ),
    )


def changed(inventory: Inventory) -> dict[str, int]:
    return {instance.id: instance.changed for instance in inventory.instances}


def test_the_first_inventory_is_generation_one():
    inventory, _, number = advance(machine("a", "b"), {}, 0)
    assert (inventory.generation, number) == ("b1:1", 1)
    assert changed(inventory) == {"a": 1, "b": 1}


def test_the_same_again_changes_nothing():
    first, seen, number = advance(machine("a"), {}, 0)
    again = advance(machine("a"), seen, number)
    assert again == (first, seen, number)


def test_only_what_changed_takes_the_new_number():
    _, seen, number = advance(machine("a", "b"), {}, 0)
    found = machine("a", "b")
    sick = structs.replace(found.instances[1], healthy=False, reason="fell off the bus")
    after, seen, number = advance(
        structs.replace(found, instances=(found.instances[0], sick)), seen, number
    )
    assert changed(after) == {"a": 1, "b": 2}


def test_what_vanished_and_comes_back_has_changed():
    _, seen, number = advance(machine("a", "b"), {}, 0)
    without, seen, number = advance(machine("a"), seen, number)
    assert (number, changed(without)) == (2, {"a": 1})
    _, seen, number = advance(machine("a"), seen, number)
    assert number == 2
    back, seen, number = advance(machine("a", "b"), seen, number)
    assert changed(back) == {"a": 1, "b": 3}


def test_the_number_goes_on_over_a_reboot():
    _, seen, number = advance(machine("a"), {}, 0)
    after, _, _ = advance(machine("a", boot="b2"), seen, number)
    assert after.generation == "b2:1"


def test_who_holds_what_is_in_neither():
    first, seen, number = advance(machine("a"), {}, 0)
    held = with_holders(machine("a"), {"a": [Holder("1", "x")]})
    after, _, _ = advance(held, seen, number)
    assert (after.generation, after.digest) == (first.generation, first.digest)


def test_the_digest_is_that_of_the_canonical_json():
    """RFC 8785 for ASCII keys and whole numbers: sorted keys, no spaces, shortest escapes."""
    inventory, _, _ = advance(machine("a", model="H100 é", minor="3"), {}, 0)
    text = json.loads(msgspec.json.encode(inventory))
    value = {"types": text["types"], "instances": text["instances"]}
    for instance in value["instances"]:
        del instance["held_by"]
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert digest(inventory) == hashlib.sha256(canonical.encode()).hexdigest()


def test_an_inventory_is_read_back_as_it_was_written():
    inventory, _, _ = advance(machine("a", model="x"), {}, 0)
    assert msgspec.json.decode(msgspec.json.encode(inventory), type=Inventory) == inventory
