"""The HTTP server, attacked over its socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import pytest

from spark_kafkalite.exposition import http
from spark_kafkalite.exposition.http import BadRequest, HttpRequest, HttpResponse, HttpServer, parse_head
from tests.patience import PATIENCE_S

BODY = b"0123456789abcdef" * 4096


def served(use: Callable[[int], Awaitable[None]]) -> list[HttpRequest]:
    """Run ``use`` with the port of a server; return the requests that reached its handler."""
    asked: list[HttpRequest] = []

    async def handle(request: HttpRequest) -> HttpResponse:
        asked.append(request)
        return HttpResponse(HTTPStatus.OK, BODY, "text/plain")

    async def run() -> None:
        server = HttpServer(handle)
        port = await server.start("127.0.0.1", 0)
        try:
            await asyncio.wait_for(use(port), PATIENCE_S)
        finally:
            await server.stop()

    asyncio.run(run())
    return asked


async def exchange(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def answer_to(sent: bytes) -> tuple[bytes, list[HttpRequest]]:
    answers: list[bytes] = []

    async def use(port: int) -> None:
        answers.append(await exchange(port, sent))

    asked = served(use)
    return answers[0], asked


def test_get_and_head() -> None:
    answer, (request,) = answer_to(b"GET /metrics?x=1 HTTP/1.1\r\nHost: localhost\r\nX-Name:  a b \r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and f"Content-Length: {len(BODY)}".encode() in head
    assert body == BODY
    assert request == HttpRequest("GET", "/metrics", {"host": "localhost", "x-name": "a b"})
    answer, _ = answer_to(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n") and f"Content-Length: {len(BODY)}".encode() in answer


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://elsewhere:9404/metrics", "/metrics"),
        (b"HTTPS://[::1]/metrics?x=/y", "/metrics"),
        (b"http://elsewhere", "/"),
        (b"http://elsewhere?x=/y", "/"),
        (b"/metrics?at=http://elsewhere/status", "/metrics"),
    ],
)
def test_the_absolute_form_of_a_target(target: bytes, path: str) -> None:
    assert parse_head(b"GET %b HTTP/1.1\r\n\r\n" % target).path == path


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET ftp://elsewhere/metrics HTTP/1.1\r\n\r\n", b"400"),
        (b"GET elsewhere:9404 HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/2\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n folded: 1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: elsewhere\r\nhost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", b"431"),
        (b"a" * 100_000, b"431"),
    ],
)
def test_what_is_no_request_gets_an_error_and_reaches_no_handler(sent: bytes, status: bytes) -> None:
    answer, asked = answer_to(sent)
    # The client may lose the answer to bytes that were never read.
    assert answer.startswith(b"HTTP/1.1 " + status) or (status == b"431" and not answer)
    assert not asked


def test_a_second_request_on_a_connection_is_not_served() -> None:
    answer, asked = answer_to(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
    assert [request.path for request in asked] == ["/a"]
    assert answer.count(b"HTTP/1.1 ") == 1


def test_one_that_sends_nothing_or_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_HEAD_TIMEOUT_S", 0.1)
    monkeypatch.setattr(http, "_SEND_TIMEOUT_S", 0.1)

    async def use(port: int) -> None:
        slow, slow_writer = await asyncio.open_connection("127.0.0.1", port)
        slow_writer.write(b"GET / HT")
        assert await slow.read() == b""
        slow_writer.close()

    assert not served(use)


def test_one_that_goes_on_sending_is_cut_off() -> None:
    """A client that sends without an end costs the loop no more than a few reads."""

    async def use(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.readexactly(1)
        with pytest.raises(ConnectionError):
            while True:
                writer.write(BODY)
                await writer.drain()
                # A closed transport takes what is written without a word.
                await asyncio.sleep(0)
                if writer.is_closing():
                    raise ConnectionResetError

    assert len(served(use)) == 1


def test_connections_that_are_held_open_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that ask nothing nor those that never read: the first to go is the oldest that has not asked."""
    monkeypatch.setattr(http, "_MOST_CONNECTIONS", 3)
    ask = b"GET / HTTP/1.1\r\n\r\n"

    async def use(port: int) -> None:
        reader, never_reads = await asyncio.open_connection("127.0.0.1", port)
        never_reads.write(ask)
        # The server has got it.
        await reader.readexactly(1)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert (await exchange(port, ask)).endswith(BODY)
        assert await idle[0][0].read() == b""
        for _ in range(20):
            idle.append(await asyncio.open_connection("127.0.0.1", port))
            assert (await exchange(port, ask)).endswith(BODY)
        assert (await reader.read()).endswith(BODY[1:])
        for _, writer in idle:
            writer.close()
        asked = []
        for _ in range(3):
            asked.append(await asyncio.open_connection("127.0.0.1", port))
            asked[-1][1].write(ask)
            await asked[-1][0].readexactly(1)
        # They have been answered and stay open: the oldest of them goes.
        assert (await exchange(port, ask)).endswith(BODY)
        for writer in (never_reads, *(writer for _, writer in asked)):
            writer.close()

    assert len(served(use)) == 26


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip;q=1.0, *;q=0", True), ("x-gzip", True),
     ("", False), ("gzip;q=0", False), ("gzip; q=0.000, br", False), ("notgzip", False)],
)  # fmt: skip
def test_who_takes_gzip(accepted: str, takes: bool) -> None:
    assert http.takes_gzip(accepted) is takes


@pytest.mark.parametrize("head", [b"", b"GET", b"GET /", b"GET / HTTP/1.1 more", b"GET  / HTTP/1.1"])
def test_first_lines_that_are_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_head(head + b"\r\n\r\n")


def test_a_packed_body_is_unpacked_for_clients_that_do_not_take_gzip() -> None:
    packed = http.gzip([BODY, BODY])

    async def handle(_: HttpRequest) -> HttpResponse:
        return HttpResponse(HTTPStatus.OK, packed, "text/plain", is_packed=True)

    async def run() -> tuple[bytes, bytes]:
        server = HttpServer(handle)
        port = await server.start("127.0.0.1", 0)
        try:
            plain = await exchange(port, b"GET / HTTP/1.1\r\n\r\n")
            return plain, await exchange(port, b"GET / HTTP/1.1\r\nAccept-Encoding: gzip\r\n\r\n")
        finally:
            await server.stop()

    plain, taken = asyncio.run(run())
    head, _, body = plain.partition(b"\r\n\r\n")
    assert body == BODY + BODY and f"Content-Length: {len(body)}\r\n".encode() in head
    head, _, body = taken.partition(b"\r\n\r\n")
    assert body == packed and b"Content-Encoding: gzip" in head
