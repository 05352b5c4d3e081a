"""Scrapers at their worst: they read nothing, say nothing, say too much, and are many."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from xce_nodeagent.daemon import listening, request, scrape
from xce_nodeagent.daemon.scrape import Scrapes

ASK = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
PATIENCE = 20.0
MUCH = b"xce 1\n" * 2_000_000  # more than any socket keeps


@contextlib.asynccontextmanager
async def _serving(
    body: bytes = b"xce 1\n", seconds: float = PATIENCE
) -> AsyncIterator[tuple[str, int]]:
    listener = listening.listen("127.0.0.1:0")
    served = Scrapes(listener, lambda: body, seconds=seconds)
    try:
        yield listener.getsockname()
    finally:
        served.close()
        assert listener.fileno() < 0


async def _asked(where: tuple[str, int], data: bytes = ASK) -> bytes:
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(*where)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return answer


async def _ended(reader: asyncio.StreamReader) -> None:
    """Wait until the other end has let go."""
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


def test_a_scrape() -> None:
    async def main() -> None:
        async with _serving() as where:
            assert (await _asked(where)).endswith(b"\r\n\r\nxce 1\n")
            head, _, rest = (await _asked(where, b"HEAD" + ASK[3:])).partition(b"\r\n\r\n")
            assert (head.split(b" ")[1], rest) == (b"200", b"")

    asyncio.run(main())


def test_a_large_answer_arrives_whole_with_a_body_unread() -> None:
    async def main() -> None:
        async with _serving(MUCH) as where:
            answer = await _asked(where, ASK + b"a body that nobody asked for")
            assert answer.partition(b"\r\n\r\n")[2] == MUCH

    asyncio.run(main())


def test_a_head_without_end_is_refused() -> None:
    async def main() -> None:
        async with _serving() as where:
            answer = await _asked(where, b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 2000)
            assert answer.startswith(request.TOO_LONG)

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"", b"GET /met", ASK])
def test_who_says_nothing_or_reads_nothing_is_cut_off(said) -> None:
    async def main() -> None:
        async with _serving(MUCH, seconds=0.2) as where:
            loop = asyncio.get_running_loop()
            with socket.socket() as sock:
                sock.settimeout(0)
                await loop.sock_connect(sock, where)
                await loop.sock_sendall(sock, said)
                await asyncio.wait_for(_closed(loop, sock), PATIENCE)

    async def _closed(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        # Reading nothing meanwhile: that the other end is closed is seen by a write that fails.
        with contextlib.suppress(ConnectionError):
            while True:
                await loop.sock_sendall(sock, b"x")
                await asyncio.sleep(0.05)

    asyncio.run(main())


def test_who_sends_byte_by_byte_is_cut_off() -> None:
    async def main() -> None:
        async with _serving() as where:
            reader, writer = await asyncio.open_connection(*where)
            sent = 0
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof() and sent < request.LIMIT:
                    writer.write(b"x")
                    await writer.drain()
                    sent += 1
                    await asyncio.sleep(0.001)
            await _ended(reader)
            assert sent < request.LIMIT
            writer.close()

    asyncio.run(main())


def test_the_oldest_of_too_many_gives_way_and_the_newest_is_served() -> None:
    async def main() -> None:
        async with _serving() as where:
            idle = [await asyncio.open_connection(*where) for _ in range(scrape.MOST)]
            assert (await _asked(where)).endswith(b"xce 1\n")
            await _ended(idle[0][0])
            assert not idle[-1][0].at_eof()
            for _, writer in idle:
                writer.close()

    asyncio.run(main())


def test_a_crowd_is_served_in_the_end() -> None:
    async def main() -> None:
        async with _serving() as where:
            crowd = [_asked(where) for _ in range(2 * scrape.RATE)]
            answers = await asyncio.gather(*crowd, return_exceptions=True)
            assert (await _asked(where)).endswith(b"xce 1\n")
            assert any(isinstance(one, bytes) and b"xce 1" in one for one in answers)

    asyncio.run(main())


def test_a_fault_of_ours_is_an_answer(caplog) -> None:
    async def main() -> None:
        listener = listening.listen("127.0.0.1:0")
        served = Scrapes(listener, lambda: bytes(1 // 0))
        assert (await _asked(listener.getsockname())).startswith(request.FAULT)
        served.close()

    asyncio.run(main())
    assert "ZeroDivisionError" in caplog.text


def test_descriptors_that_come_along_are_not_taken(tmp_path) -> None:
    """Nobody here closes a descriptor of somebody else's: that can last as long as they like."""

    async def main() -> None:
        where = f"unix:{tmp_path}/m.sock"
        served = Scrapes(listening.listen(where), lambda: b"xce 1\n")
        with socket.socket(socket.AF_UNIX) as sock, socket.socket() as given:
            sock.settimeout(PATIENCE)
            sock.connect(f"{tmp_path}/m.sock")
            with contextlib.suppress(OSError):  # since Linux 6.16 they cannot even be sent
                socket.send_fds(sock, [ASK], [given.fileno()])
            await asyncio.wait_for(asyncio.to_thread(_end, sock), PATIENCE)
        served.close()

    def _end(sock: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""

    asyncio.run(main())
