"""An independent implementation of Varlink talks to the server: asyncvarlink's client."""

# ruff: noqa: N802  # the interface's names
# That library reads annotations as they are, so they are not postponed here.

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TypedDict

import asyncvarlink
import pytest
from asyncvarlink.serviceinterface import VarlinkServiceInterface


class Port(TypedDict):
    port: int
    name: str


class Prepared(TypedDict):
    job: str
    attempt: str
    instances: list[str]
    env: dict[str, str]
    cgroup: dict[str, str]
    generation: str
    enforcement: str
    ports: list[Port]


class PortAsk(TypedDict, total=False):
    name: str | None
    count: int | None


class NodeAgent(asyncvarlink.VarlinkInterface, name="io.xce.NodeAgent"):
    """Part of the interface, as that library describes one."""

    @asyncvarlink.varlinkmethod
    def Prepare(
        self, *, job: str, attempt: str | None, instances: list[str], ports: list[PortAsk] | None
    ) -> Prepared: ...

    @asyncvarlink.varlinkmethod
    def Drain(self, *, id: str, reason: str) -> None: ...  # noqa: A002  # the field's name


@contextlib.asynccontextmanager
async def connected(path: str) -> AsyncIterator[asyncvarlink.VarlinkClientProtocol]:
    transport, protocol = await asyncvarlink.connect_unix_varlink(
        asyncvarlink.VarlinkClientProtocol, path
    )
    try:
        yield protocol
    finally:
        transport.close()
        await asyncio.sleep(0)  # the library closes its socket from the loop


def test_it_calls_and_understands_the_answer(agent: str) -> None:
    async def talk() -> None:
        async with connected(agent) as protocol:
            proxy = protocol.make_proxy(NodeAgent)
            answer = await proxy.Prepare(
                job="12[3]", attempt=None, instances=["GPU-1"], ports=[{"name": "http", "count": 1}]
            )
            assert answer["instances"] == ["GPU-1"]
            assert answer["ports"] == [{"port": 20000, "name": "http"}]
            many = [
                proxy.Prepare(job=str(number), attempt="1", instances=[], ports=None)
                for number in range(50)
            ]
            answers = await asyncio.gather(*many)  # all on one connection, in order
            assert [answer["job"] for answer in answers] == [str(n) for n in range(50)]

    asyncio.run(talk())


def test_it_understands_an_error(agent: str) -> None:
    async def talk() -> None:
        async with connected(agent) as protocol:
            proxy = protocol.make_proxy(NodeAgent)
            await proxy.Prepare(job="1", attempt="a", instances=["GPU-1"], ports=None)
            with pytest.raises(asyncvarlink.VarlinkErrorReply) as caught:
                await proxy.Prepare(job="2", attempt="a", instances=["GPU-1"], ports=None)
            assert caught.value.name == "io.xce.NodeAgent.Busy"

    asyncio.run(talk())


def test_it_follows_a_stream(agent: str) -> None:
    async def talk() -> None:
        async with connected(agent) as watching, connected(agent) as acting:
            stream = watching.call_more(
                asyncvarlink.VarlinkMethodCall("io.xce.NodeAgent.GetInventory", {}, more=True)
            )
            first, _ = await anext(stream)
            assert first.continues
            await acting.make_proxy(NodeAgent).Drain(id="GPU-2", reason="test")
            then, _ = await anext(stream)
            drained = [i["id"] for i in then.parameters["instances"] if i["drained"]]
            assert drained == ["GPU-2"]

    asyncio.run(talk())


def test_it_introspects(agent: str) -> None:
    async def talk() -> None:
        async with connected(agent) as protocol:
            proxy = protocol.make_proxy(VarlinkServiceInterface)
            info = await proxy.GetInfo()
            assert "io.xce.NodeAgent" in info["interfaces"]
            text = await proxy.GetInterfaceDescription(interface="io.xce.NodeAgent")
            assert "method Prepare(" in str(text)

    asyncio.run(talk())
