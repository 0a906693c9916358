"""Connections between brokers, over loopback: the proof, requests in order, and every way in which they end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from spark_kafkalite.broker.network import peer
from spark_kafkalite.broker.network.peer import PeerConnection, PeerIdentity, PeerSettings
from spark_kafkalite.broker.network.wire_versions import WireVersions
from spark_kafkalite.errors import (
    BrokerUnreachable,
    IllegalSaslState,
    KafkaliteError,
    NoMemoryForAnswer,
    SaslAuthenticationFailed,
)
from spark_kafkalite.security.cluster_secret import ClusterSecret
from spark_kafkalite.slices import Slices
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.frame import lend_memory
from spark_kafkalite.wire.header import read_request_header
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeResponse
from tests.patience import PATIENCE_S, wait_until_async
from tests.seeds import SEED
from tests.unit.broker.network.brokers_door import HEARTBEAT_VERSION, OTHER_SECRET, SECRET, door
from tests.unit.slice_clock import SliceClock


def heartbeat(number: int) -> bytes:
    return codec.encode_body(HeartbeatRequest(group_id="g", generation_id=number, member_id="m"), HEARTBEAT_VERSION)


def send(connection: PeerConnection, number: int, answers: list[int], timeout_s: float | None = None) -> None:
    def on_answer(body: memoryview) -> None:
        answers.append(codec.decode_response_body(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, body).throttle_time_ms)

    connection.send(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, heartbeat(number), on_answer, timeout_s=timeout_s)


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its time can be put forward."""

    jumped_s = 0.0

    def time(self) -> float:
        return super().time() + self.jumped_s


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(bounded())


@pytest.mark.parametrize("alone", [False, True])
def test_requests_that_are_sent_before_the_proof_are_answered_in_order_after_it(alone: bool) -> None:
    async def test() -> None:
        async with door(for_brokers_alone=alone) as one:
            visitor, answers = one.connect(7), list[int]()
            for number in range(100):
                send(visitor.connection, number, answers)
            assert visitor.connection.unanswered == 100 and not visitor.connection.was_proved
            await wait_until_async(lambda: len(answers) == 100, "all are answered", poll_s=0.001)
            assert answers == list(range(100)) and set(one.asked) == {7}
            send(visitor.connection, 100, answers)
            await wait_until_async(lambda: answers[-1] == 100, "the next one is answered", poll_s=0.001)
            assert visitor.errors == [] and visitor.connection.unanswered == 0
            visitor.connection.close()

    run(test)


def test_a_wrong_secret_is_refused_and_nothing_is_served() -> None:
    async def test() -> None:
        async with door() as one:
            visitor, answers = one.connect(7, OTHER_SECRET), list[int]()
            send(visitor.connection, 1, answers)
            await wait_until_async(lambda: visitor.errors, "the connection ends", poll_s=0.001)
            (error,) = visitor.errors
            assert isinstance(error, SaslAuthenticationFailed)
            assert "refuses broker-7" in str(error) and "inter.broker.secret.file" in str(error)
            assert SECRET not in str(error) and OTHER_SECRET not in str(error)
            assert (answers, one.asked) == ([], []) and visitor.connection.closed

    run(test)


def test_a_listener_that_does_not_serve_brokers_is_told() -> None:
    async def test() -> None:
        async with door() as one:
            one.inner_wire.listener_name = "INNER"
            visitor = one.connect()
            await wait_until_async(lambda: visitor.errors, "the connection ends", poll_s=0.001)
            assert isinstance(visitor.errors[0], IllegalSaslState)
            assert "inter.broker.listener.name" in str(visitor.errors[0])

    run(test)


def test_both_secrets_are_accepted_while_they_change_and_the_old_ones_connections_end_with_it() -> None:
    async def test() -> None:
        async with door() as one:
            old, answers = one.connect(7), list[int]()
            send(old.connection, 1, answers)
            await wait_until_async(lambda: answers == [1], "the first one is answered", poll_s=0.001)
            one.inner_wire.set_secret(ClusterSecret((OTHER_SECRET, SECRET)))
            new, again = one.connect(8, OTHER_SECRET), one.connect(9, SECRET)
            for number, visitor in enumerate((old, new, again), 2):
                send(visitor.connection, number, answers)
            await wait_until_async(
                lambda: sorted(answers) == [1, 2, 3, 4], "all connections are answered", poll_s=0.001
            )
            one.inner_wire.set_secret(ClusterSecret((OTHER_SECRET,)))
            await wait_until_async(
                lambda: old.errors and again.errors, "the connections with the old secret end", poll_s=0.001
            )
            assert "closed the connection" in str(old.errors[0])
            send(new.connection, 5, answers)
            await wait_until_async(lambda: answers[-1] == 5, "the new one goes on", poll_s=0.001)
            assert new.errors == []
            new.connection.close()

    run(test)


def test_a_late_answer_ends_the_connection_and_names_the_request() -> None:
    async def test() -> None:
        async with door() as one:
            visitor, answers = one.connect(), list[int]()
            send(visitor.connection, 1, answers)
            await wait_until_async(lambda: answers, "the first one is answered", poll_s=0.001)
            one.answering.clear()
            send(visitor.connection, 2, answers, timeout_s=PATIENCE_S)
            send(visitor.connection, 3, answers, timeout_s=0.05)
            await wait_until_async(lambda: visitor.errors, "the connection ends", poll_s=0.001)
            assert isinstance(visitor.errors[0], BrokerUnreachable) and "Heartbeat" in str(visitor.errors[0])
            one.answering.set()

    run(test)


def test_who_does_not_listen_is_named_with_the_reason() -> None:
    async def test() -> None:
        async with door() as one:
            free = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
            port = free.sockets[0].getsockname()[1]
            free.close()
            await free.wait_closed()
            visitor = one.connect(port=port)
            await wait_until_async(lambda: visitor.errors, "the connection ends", poll_s=0.001)
            assert f"broker 1 at 127.0.0.1:{port} cannot be connected to" in str(visitor.errors[0])

    run(test)


def test_close_ends_it_at_every_moment_without_a_word() -> None:
    async def test() -> None:
        async with door() as one:
            for turns in range(40):
                visitor, answers = one.connect(), list[int]()
                send(visitor.connection, 1, answers)
                for _ in range(turns):
                    await asyncio.sleep(0)
                visitor.connection.close()
                visitor.connection.close()
                send(visitor.connection, 2, answers)
                assert visitor.errors == []
            await wait_until_async(lambda: len(one.acceptor) == 0, "all connections are gone", poll_s=0.001)

    run(test)


# A broker that answers as a test wants -------------------------------------------------------------------------------


class Speaker:
    """Proves itself as a broker does, and then says what it is told to."""

    def __init__(self, says: Callable[[int, HeartbeatRequest], bytes | None], piece_bytes: int = 1 << 30) -> None:
        self._says = says
        self._piece_bytes = piece_bytes
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scram = ClusterSecret((SECRET,)).server()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                (key, version, number, _), position = read_request_header(frame)
                message = codec.decode_request(key, version, memoryview(frame), position)
                if key == ApiKey.SASL_HANDSHAKE:
                    said = codec.encode_response(SaslHandshakeResponse(mechanisms=[]), version, number)
                elif key == ApiKey.SASL_AUTHENTICATE:
                    answer = SaslAuthenticateResponse(auth_bytes=scram.answer(message.auth_bytes))
                    said = codec.encode_response(answer, version, number)
                else:
                    chosen = self._says(number, message)
                    if chosen is None:
                        break
                    said = chosen
                for data in (struct.pack(">i", len(said)) + said,):
                    for first in range(0, len(data), self._piece_bytes):
                        writer.write(data[first : first + self._piece_bytes])
                        await writer.drain()
                        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def speaker(one: Speaker) -> AsyncIterator[Speaker]:
    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        try:
            await one.serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    async with server:
        yield one
        await asyncio.gather(*served)


def visit(one: Speaker, timeout_s: float = PATIENCE_S) -> tuple[PeerConnection, list[KafkaliteError]]:
    loop, errors = asyncio.get_running_loop(), list[KafkaliteError]()
    slices = Slices(loop, SliceClock())
    identity = PeerIdentity(7, ClusterSecret((SECRET,)), WireVersions(7))
    settings = PeerSettings(timeout_s, 64 * 1024)
    return PeerConnection(loop, slices, 1, ("127.0.0.1", one.port), identity, settings, errors.append), errors


def raw_answer(number: int, body: bytes) -> bytes:
    """An answer to a Heartbeat with this body, whatever it is."""
    return struct.pack(">i", number) + b"\0" + body


@pytest.mark.parametrize("piece_bytes", [1 << 30, 65_536, 4099])
def test_answers_of_every_size_arrive_whole_and_large_ones_in_one_buffer(piece_bytes: int) -> None:
    seed = SEED
    print(f"seed {seed}")
    source = random.Random(seed)
    sizes = [source.choice([0, 1, 100, 65_530, 65_536, 200_000, 3_000_000]) + source.randrange(50) for _ in range(25)]
    bodies = [source.randbytes(size) for size in sizes]

    async def test() -> None:
        one = Speaker(lambda number, asked: raw_answer(number, bodies[asked.generation_id]), piece_bytes)
        async with speaker(one):
            connection, errors = visit(one)
            got: list[bytes] = []
            buffers: set[int] = set()

            def on_answer(body: memoryview) -> None:
                got.append(bytes(body))
                if len(body) > 100_000:
                    buffers.add(id(body.obj))

            for number in range(len(bodies)):
                connection.send(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, heartbeat(number), on_answer)
            await wait_until_async(lambda: len(got) == len(bodies) or errors, "all answers arrive", poll_s=0.001)
            assert errors == [] and got == bodies
            # One that grew, at most: the sizes lie in two steps.
            assert len(buffers) <= 2
            connection.close()

    run(test)


def test_an_answer_for_which_there_is_no_memory_ends_the_connection_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lend(size_bytes: int) -> memoryview:
        if size_bytes > 10_000_000:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return lend_memory(size_bytes)

    async def test() -> None:
        one = Speaker(lambda number, asked: raw_answer(number, b"beginning" + bytes(20_000_000)), 50_000)
        async with speaker(one):
            connection, errors = visit(one)
            monkeypatch.setattr(peer, "lend_memory", lend)
            connection.send(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, heartbeat(1), lambda _: None)
            await wait_until_async(lambda: bool(errors), "the connection has ended", poll_s=0.001)
            (error,) = errors
            assert isinstance(error, NoMemoryForAnswer)
            assert error.size_bytes == 20_000_014 and error.beginning[:9] == b"beginning"
            assert "an answer of 20000014 bytes, for which there is no memory (Cannot allocate memory)" in str(error)
        assert not [record for record in caplog.records if record.exc_info]

    run(test)


def test_an_answer_that_is_held_stays_while_the_next_ones_wait_for_its_release() -> None:
    async def test() -> None:
        def body(number: int) -> bytes:
            return bytes([number]) * (200_000 if number % 2 else 10)

        one = Speaker(lambda number, asked: raw_answer(number, body(asked.generation_id)))
        async with speaker(one):
            connection, errors = visit(one, timeout_s=PATIENCE_S / 4)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, JumpingLoop)
            held: list[memoryview] = []

            def on_answer(answer: memoryview) -> None:
                held.append(answer)
                connection.hold()

            for number in range(6):
                connection.send(ApiKey.HEARTBEAT, HEARTBEAT_VERSION, heartbeat(number), on_answer)
            for number in range(6):
                await wait_until_async(lambda: held or errors, "the next answer is given", poll_s=0.001)
                if number == 2:
                    # Longer than an answer may take.
                    loop.jumped_s += PATIENCE_S / 2
                # Meanwhile nothing of the next answer may overwrite this one.
                await asyncio.sleep(0.01)
                assert errors == []
                assert [bytes(each) for each in held] == [body(number)]
                held.clear()
                connection.release()
                # Those that waited meanwhile are not late: nobody could take them.
                connection._check_due()
            connection.close()

    run(test)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (lambda number, _: None, "closed the connection"),
        (lambda number, _: raw_answer(number + 1, b""), "instead of"),
        (lambda number, _: b"\0", "an invalid answer"),
    ],
)
def test_what_is_no_answer_ends_the_connection(says: Callable[[int, object], bytes | None], why: str) -> None:
    async def test() -> None:
        async with speaker(Speaker(says)) as one:
            connection, errors = visit(one)
            answers: list[bytes] = []
            for number in range(2):
                connection.send(
                    ApiKey.HEARTBEAT, HEARTBEAT_VERSION, heartbeat(number), lambda body: answers.append(bytes(body))
                )
            await wait_until_async(lambda: errors, "the connection ends", poll_s=0.001)
            assert isinstance(errors[0], BrokerUnreachable) and why in str(errors[0])
            assert connection.closed and connection.unanswered == 0

    run(test)


def test_an_impostor_who_does_not_know_the_secret_is_not_believed() -> None:
    async def test() -> None:
        class Impostor(Speaker):
            async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                # It plays back what a broker would say, up to the signature.
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    for turn in range(3):
                        (size,) = struct.unpack(">i", await reader.readexactly(4))
                        frame = await reader.readexactly(size)
                        (key, version, number, _), position = read_request_header(frame)
                        message = codec.decode_request(key, version, memoryview(frame), position)
                        if turn == 0:
                            said = codec.encode_response(SaslHandshakeResponse(), version, number)
                        else:
                            nonce = message.auth_bytes.partition(b"r=")[2].partition(b",")[0]
                            lines = {1: b"r=" + nonce + b"xyz,s=c2FsdHNhbHQ=,i=4096", 2: b"v=" + b"A" * 43 + b"="}
                            answer = SaslAuthenticateResponse(auth_bytes=lines[turn])
                            said = codec.encode_response(answer, version, number)
                        writer.write(struct.pack(">i", len(said)) + said)
                    await reader.read()

        async with speaker(Impostor(lambda *_: None)) as one:
            connection, errors = visit(one)
            answers: list[int] = []
            send(connection, 1, answers)
            await wait_until_async(lambda: errors, "the connection ends", poll_s=0.001)
            assert isinstance(errors[0], SaslAuthenticationFailed) and "did not prove" in str(errors[0])
            assert answers == []

    run(test)


def test_who_says_nothing_is_given_up() -> None:
    async def test() -> None:
        class Mute(Speaker):
            async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read()

        async with speaker(Mute(lambda *_: None)) as one:
            connection, errors = visit(one, timeout_s=0.05)
            await wait_until_async(lambda: errors, "the connection ends", poll_s=0.001)
            assert "replica.socket.timeout.ms" in str(errors[0])
            assert connection.closed

    run(test)


def test_a_megabyte_before_the_proof_is_not_read() -> None:
    async def test() -> None:
        class Flood(Speaker):
            async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(struct.pack(">i", 1 << 20) + bytes(1 << 20))
                with contextlib.suppress(ConnectionError):
                    await reader.read()

        async with speaker(Flood(lambda *_: None)) as one:
            _, errors = visit(one)
            await wait_until_async(lambda: errors, "the connection ends", poll_s=0.001)
            assert "1048576" in str(errors[0])

    run(test)
