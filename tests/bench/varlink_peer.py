"""A Varlink server from a library, asyncvarlink, which answers Prepare with a constant.

varlink_peer.py SOCKET ANSWER      (ANSWER is a file: the product's own reply, as JSON)
"""

# asyncvarlink reads the annotations as they stand: no `from __future__ import annotations` here.
import asyncio
import json
import sys
from pathlib import Path
from typing import TypedDict

from asyncvarlink import (
    VarlinkInterface,
    VarlinkInterfaceRegistry,
    create_unix_server,
    varlinkmethod,
)


class PortAsk(TypedDict):
    """As in the product's interface."""

    count: int


class PortHeld(TypedDict):
    """As in the product's interface."""

    port: int
    name: str


class Prepared(TypedDict):
    """As in the product's interface."""

    job: str
    attempt: str
    instances: list[str]
    env: dict[str, str]
    cgroup: dict[str, str]
    generation: str
    enforcement: str
    ports: list[PortHeld]


class NodeAgent(VarlinkInterface, name="io.xce.NodeAgent"):
    """One method of the product's, which does nothing."""

    def __init__(self, answer: Prepared) -> None:
        self.answer = answer

    @varlinkmethod
    def Prepare(  # noqa: N802  # the name on the wire
        self,
        *,
        job: str,  # the library decodes it, and that is what is measured
        attempt: str,  # the same
        instances: list[str],  # the same
        ports: list[PortAsk] | None = None,  # the same
    ) -> Prepared:
        """Answer."""
        return self.answer


async def main(where: str, answer: Prepared) -> None:
    """Serve until the process is ended."""
    registry = VarlinkInterfaceRegistry()
    registry.register_interface(NodeAgent(answer))
    server = await create_unix_server(registry.protocol_factory, where)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text("utf-8"))))
