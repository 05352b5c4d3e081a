from __future__ import annotations

import socket
import threading
import time

import pytest
from places import answer, place, request

from xce_nodeagent.upstream.noanswer import NoAnswer
from xce_nodeagent.upstream.web import Connection


def echo(one, _number):
    while told := request(one):
        one.sendall(answer(told.partition(b"\r\n\r\n")[2] or b"nothing", "X-One: 1"))


def test_an_answer_and_the_connection_is_kept():
    with place(echo) as where:
        connection = Connection(where.url)
        for body in (b"one", b"two", b"x" * 1_000_000):
            told = connection.ask("POST", "/a", body)
            assert (told.status, told.body, told.headers["x-one"]) == (200, body, "1")
        assert where.count == 1
        connection.close()
        assert connection.ask("GET", "/a").body == b"nothing"
        assert where.count == 2
        connection.close()


def test_an_answer_in_pieces_leaves_the_connection_whole():
    def serve(one, _number):
        while request(one):
            one.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
            one.sendall(b"2\r\nde\r\n0\r\n\r\n")

    with place(serve) as where:
        connection = Connection(where.url)
        assert [connection.ask("GET", "/").body for _ in range(3)] == [b"abcde"] * 3
        assert where.count == 1
        connection.close()


def test_a_connection_that_the_other_side_ended_is_opened_again():
    def serve(one, _number):
        request(one)
        one.sendall(answer(b"once"))

    with place(serve) as where:
        connection = Connection(where.url)
        assert [connection.ask("POST", "/", b"x").body for _ in range(3)] == [b"once"] * 3
        assert where.count == 3
        connection.close()


def test_nobody_listens():
    with place(echo) as where:
        url = where.url
    with pytest.raises(NoAnswer, match=r"http://127\.0\.0\.1:\d+: Connection refused") as told:
        Connection(url).ask("GET", "/")
    assert (told.value.begun, told.value.certificate) == (False, False)


def drip(one, _number):
    request(one)
    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        one.sendall(b"x")
        time.sleep(0.05)


def drip_head(one, _number):
    request(one)
    one.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(50):
        one.sendall(f"X-{number}: 1\r\n".encode())
        time.sleep(0.05)


def silent(one, _number):
    while one.recv(65536):
        pass


@pytest.mark.parametrize("serve", [drip, drip_head, silent])
def test_a_place_that_answers_slowly_for_ever_is_left(serve):
    with place(serve) as where:
        connection = Connection(where.url, seconds=0.5)
        with pytest.raises(NoAnswer, match="no answer in time") as told:
            connection.ask("POST", "/", b"x")
        assert told.value.begun


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", "more than 1000 bytes"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000,
            "more than 1000 bytes",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000, "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "ended the connection within"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", "ended the connection"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "127.0.0.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 200 + b"\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "no HTTP"),
        (b"SSH-2.0-OpenSSH_9\r\n", "no HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "no HTTP"),
        (b"", "without an answer"),
    ],
)
def test_rubbish_is_no_answer(said, why):
    def serve(one, _number):
        request(one)
        one.sendall(said)

    with place(serve) as where:
        connection = Connection(where.url, seconds=10, largest=1000)
        with pytest.raises(NoAnswer, match=why):
            connection.ask("GET", "/")


def test_lines_as_they_come():
    go = threading.Event()

    def serve(one, _number):
        request(one)
        one.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        one.sendall(b"6\r\none\ntw\r\n")
        go.wait(10)
        one.sendall(b"7\r\no\nthree\r\n")
        silent(one, 0)

    with place(serve) as where:
        lines = Connection(where.url).lines("POST", "/", quiet_seconds=0.5)
        assert next(lines) == b"one"
        go.set()
        assert next(lines) == b"two"
        with pytest.raises(NoAnswer, match="no answer in time"):
            next(lines)


def test_a_line_without_end_is_cut_off():
    def serve(one, _number):
        request(one)
        one.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            one.sendall(b"x" * 65536)

    with place(serve) as where:
        lines = Connection(where.url).lines("POST", "/", quiet_seconds=10, longest=1_000_000)
        with pytest.raises(NoAnswer, match="more than 1000000 bytes"):
            next(lines)


def test_another_status_is_no_stream():
    def serve(one, _number):
        request(one)
        one.sendall(answer(b"go away", status="403 Forbidden"))

    with place(serve) as where, pytest.raises(NoAnswer, match="403, go away"):
        next(Connection(where.url).lines("POST", "/", quiet_seconds=10))


def test_another_thread_ends_the_wait():
    asked = threading.Event()

    def serve(one, _number):
        request(one)
        one.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        asked.set()
        silent(one, 0)

    with place(serve) as where:
        connection = Connection(where.url)
        ended = []

        def follow():
            try:
                next(connection.lines("POST", "/", quiet_seconds=60))
            except NoAnswer as error:
                ended.append(error.reason)

        thread = threading.Thread(target=follow)
        thread.start()
        assert asked.wait(10)
        connection.close()
        thread.join(10)
        assert not thread.is_alive()
        assert ended


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:2379", "ftp://h", "http://", "http://u:secret@h:1", "http://h:99999"]
)
def test_what_is_no_place(url):
    with pytest.raises(ValueError, match=r"HOST:PORT|Port|port") as told:
        Connection(url)
    assert "secret" not in str(told.value)


def test_a_name_that_nobody_resolves_is_given_up_in_time():
    """The question stays one: its answer is taken when it comes."""
    asked, go = [], threading.Event()

    def resolve(*found, **how):
        asked.append(found)
        assert go.wait(30)
        return socket.getaddrinfo("127.0.0.1", where.port, **how)

    with place(echo) as where:
        url = f"http://store.example:{where.port}"
        connection = Connection(url, connect_seconds=0.1, resolve=resolve)
        for _ in range(3):
            with pytest.raises(NoAnswer, match=r"store\.example:.*not resolved in time") as told:
                connection.ask("GET", "/")
            assert (told.value.late, told.value.begun) == (True, False)
        assert asked == [("store.example", where.port)]
        go.set()
        connection._connect_seconds = 30
        assert connection.ask("GET", "/").status == 200
        assert len(asked) == 1
        connection.close()


def test_a_name_that_is_not_known_is_told():
    def resolve(*_found, **_how):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    connection = Connection("http://store.example:1", resolve=resolve)
    with pytest.raises(NoAnswer, match="the name is not known"):
        connection.ask("GET", "/")


def test_a_fault_of_our_own_is_no_matter_of_the_place():
    class Body:
        def read(self, _size):
            raise AttributeError("ours")

    with place(echo) as where:
        connection = Connection(where.url)
        with pytest.raises(AttributeError, match="ours"):
            connection.ask("POST", "/", Body())
        assert connection.ask("POST", "/", b"x").status == 200
        connection.close()
