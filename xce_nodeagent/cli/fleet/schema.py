"""The JSON Schema (draft 2020-12) of what `fleet --json` prints, made from its own types.

What this version does not know is allowed everywhere: a later one may tell more.
"""

from __future__ import annotations

from typing import Any

import msgspec

from xce_nodeagent.cli.fleet.view import SCHEMA, FleetView

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Give the schema."""
    found = msgspec.json.schema(FleetView)
    kinds = found["$defs"]
    del kinds["NodeView"]["properties"]["cards"]
    kinds["NodeView"]["description"] = kinds["NodeView"]["description"].partition("\n\n`cards`")[0]
    for kind in kinds.values():
        if "properties" in kind:  # all of it is printed, defaults as well
            kind["required"] = list(kind["properties"])
    kinds["FleetView"]["properties"]["schema"] = {"const": SCHEMA}
    kinds["NodeView"]["properties"]["inventory"] = {
        "type": ["object", "null"],
        "description": "of a node that was asked for by its name: as `inventory --json` has it",
    }
    return {"$schema": _DRAFT, "title": SCHEMA, **found}
