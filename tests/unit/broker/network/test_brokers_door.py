"""What strangers meet where brokers prove themselves: refusals that look alike, bounded bytes, and bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.network.session import Handshake
from spark_kafkalite.errors import IllegalSaslState, SaslAuthenticationFailed
from spark_kafkalite.registry.znodes import INNER_WIRE_VERSION
from spark_kafkalite.security.cluster_secret import MECHANISM, ClusterSecret, broker_user
from spark_kafkalite.security.scram import ScramClient
from spark_kafkalite.slices import SLICE_S, Slices
from spark_kafkalite.wire import codec
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.patience import PATIENCE_S, wait_until_async
from tests.seeds import SEED
from tests.unit.broker.network.brokers_door import HEARTBEAT_VERSION, OTHER_SECRET, SECRET, Door, door
from tests.unit.slice_clock import SliceClock

READ_TIMEOUT_S = 30.0
STRANGERS = 100
REFUSED, ILLEGAL, UNSUPPORTED = SaslAuthenticationFailed.code, IllegalSaslState.code, 33
# With its proof a broker sends its version of the inner wire.
PRESENT_VERSION = {"wire": str(INNER_WIRE_VERSION)}


class Stranger:
    """Speaks frames over a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sent = 0

    async def ask(self, message: Any, version: int) -> Any:
        self._sent += 1
        frame = codec.encode_request(message, version, self._sent, "stranger")
        self.writer.write(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return codec.decode_response(message.API_KEY, version, await self.reader.readexactly(size))[1]

    async def handshake(self, mechanism: str = MECHANISM) -> Any:
        return await self.ask(SaslHandshakeRequest(mechanism=mechanism), 1)

    async def say(self, said: bytes) -> Any:
        return await self.ask(SaslAuthenticateRequest(auth_bytes=said), 2)

    async def beat(self) -> Any:
        return await self.ask(HeartbeatRequest(), HEARTBEAT_VERSION)

    async def prove(self, user: str = "broker-7", secret: str = SECRET, *, is_token: bool = False) -> Any:
        """Go through the exchange; return the last answer."""
        assert (await self.handshake()).error_code == 0
        client = ScramClient(MECHANISM, user, secret, is_token=is_token, extensions={} if is_token else PRESENT_VERSION)
        said: bytes | None = client.first()
        answer = None
        while said is not None:
            answer = await self.say(said)
            if answer.error_code:
                return answer
            said = client.answer(answer.auth_bytes)
        return answer

    async def is_closed(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read(1) == b""
            return True


@contextlib.asynccontextmanager
async def stranger(at: Door) -> Any:
    reader, writer = await asyncio.open_connection(*at.address)
    try:
        yield Stranger(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(bounded())


def test_whoever_is_refused_gets_the_same_answer_and_is_closed() -> None:
    wrong = [
        ("broker-7", OTHER_SECRET, False),
        ("alice", SECRET, False),
        ("broker-07", SECRET, False),
        ("broker--1", SECRET, False),
        ("broker-2147483648", SECRET, False),
        ("broker-7", SECRET, True),
    ]

    async def test() -> None:
        async with door() as one:
            answers = set()
            for user, secret, is_token in wrong:
                async with stranger(one) as who:
                    answer = await who.prove(user, secret, is_token=is_token)
                    answers.add((answer.error_code, answer.error_message, answer.auth_bytes))
                    assert user not in answer.error_message
                    assert await who.is_closed()
            assert {code for code, _, _ in answers} == {REFUSED} and len(answers) == 1
            assert one.asked == []

    run(test)


def test_known_and_unknown_users_are_challenged_alike() -> None:
    async def test() -> None:
        async with door() as one:
            challenges = set()
            for user in ("broker-7", "alice", "broker-9999999999"):
                async with stranger(one) as who:
                    await who.handshake()
                    said = (await who.say(ScramClient(MECHANISM, user, "x").first())).auth_bytes
                    challenges.add(said.partition(b",")[2])
            assert len(challenges) == 1

    run(test)


def test_who_is_proved_is_known_by_number_and_may_not_become_another() -> None:
    async def test() -> None:
        async with door() as one, stranger(one) as who:
            await who.beat()
            assert (await who.prove("broker-12")).error_code == 0
            await who.beat()
            assert one.asked == [None, 12]
            assert (await who.handshake()).error_code == ILLEGAL
            assert (await who.say(b"n,,n=broker-1,r=x")).error_code == ILLEGAL
            await who.beat()
            assert one.asked == [None, 12, 12]
            (connection,) = one.acceptor._connections
            assert connection.session.principal == "User:broker-12"

    run(test)


def test_a_proof_that_was_overheard_proves_nothing_again() -> None:
    async def test() -> None:
        async with door() as one:
            client = ScramClient(MECHANISM, "broker-7", SECRET, extensions=PRESENT_VERSION)
            first = client.first()
            async with stranger(one) as who:
                await who.handshake()
                proof = client.answer((await who.say(first)).auth_bytes)
                assert proof is not None and (await who.say(proof)).error_code == 0
            async with stranger(one) as again:
                await again.handshake()
                assert (await again.say(first)).error_code == 0
                assert (await again.say(proof)).error_code == REFUSED
                assert await again.is_closed()
            assert not any(connection.session.broker_id == 7 for connection in one.acceptor._connections)

    run(test)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "GSSAPI", ""])
def test_other_mechanisms_are_not_offered(mechanism: str) -> None:
    async def test() -> None:
        async with door() as one, stranger(one) as who:
            answer = await who.handshake(mechanism)
            assert (answer.error_code, answer.mechanisms) == (UNSUPPORTED, [MECHANISM])
            assert await who.is_closed()

    run(test)


def test_only_the_listener_of_the_brokers_takes_their_proofs() -> None:
    async def test() -> None:
        async with door() as one, stranger(one) as who:
            one.inner_wire.listener_name = "INNER"
            assert (await who.handshake()).error_code == ILLEGAL
            assert (await who.say(b"n,,n=broker-1,r=x")).error_code == ILLEGAL
            # Clients go on as if nothing had been said.
            await who.beat()
            assert one.asked == [None]

    run(test)


def test_amid_the_proof_nothing_else_is_served() -> None:
    async def test() -> None:
        async with door() as one, stranger(one) as who:
            await who.handshake()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await who.beat()
            assert one.asked == []

    run(test)


def test_a_listener_for_brokers_alone_serves_nobody_else() -> None:
    async def test() -> None:
        async with door(for_brokers_alone=True) as one:
            async with stranger(one) as who:
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await who.beat()
            async with stranger(one) as who:
                # A request of 65,537 bytes: none of it is kept.
                who.writer.write(struct.pack(">i", 65_537))
                assert await who.is_closed()
            async with stranger(one) as who:
                assert (await who.prove()).error_code == 0
                large = HeartbeatRequest(group_id="g" * 30_000, member_id="m" * 30_000, group_instance_id="i" * 30_000)
                await who.ask(large, HEARTBEAT_VERSION)
            assert one.asked == [7]

    run(test)


def test_garbage_before_the_proof_closes_and_is_survived() -> None:
    seed = SEED
    print(f"seed {seed}")
    source = random.Random(seed)

    async def test() -> None:
        async with door(for_brokers_alone=True) as one:
            for _ in range(40):
                async with stranger(one) as who:
                    if source.random() < 0.5:
                        await who.handshake()
                    body = source.randbytes(source.randrange(1, 200))
                    framed = struct.pack(">i", len(body)) + body
                    kind = source.randrange(3)
                    if kind == 0:
                        # As the body of SaslAuthenticate, whatever it is.
                        framed = codec.encode_request(SaslAuthenticateRequest(auth_bytes=body), 2, 9, "s")
                        framed = struct.pack(">i", len(framed)) + framed
                    who.writer.write(body if kind == 1 else framed)
                    with contextlib.suppress(ConnectionError):
                        await who.writer.drain()
                    who.writer.write_eof()
                    async with asyncio.timeout(PATIENCE_S):
                        with contextlib.suppress(ConnectionError):
                            await who.reader.read()
            assert one.asked == []
            visitor = one.connect()
            await wait_until_async(lambda: visitor.connection.was_proved, "the broker authenticates", poll_s=0.001)
            visitor.connection.close()

    run(test)


@pytest.mark.parametrize("alone", [False, True])
def test_strangers_that_stop_half_way_cost_nobody_else_and_are_closed_in_time(alone: bool) -> None:
    async def test() -> None:
        async with door(for_brokers_alone=alone) as one:
            halted = []
            for number in range(STRANGERS):
                reader, writer = await asyncio.open_connection(*one.address)
                who = Stranger(reader, writer)
                halted.append(who)
                if number % 2 or not alone:
                    await who.handshake()
                    if number % 4 == 1:
                        await who.say(ScramClient(MECHANISM, broker_user(number), "x").first())
            await wait_until_async(lambda: len(one.acceptor) == STRANGERS, "all are connected", poll_s=0.001)
            visitor = one.connect()
            await wait_until_async(lambda: visitor.connection.was_proved, "the broker authenticates", poll_s=0.001)
            for connection in one.acceptor._connections:
                session = connection.session
                if session.broker_id is None:
                    assert session.handshake_due_s <= one.loop.time() + READ_TIMEOUT_S
                    session.handshake_due_s -= READ_TIMEOUT_S
            await wait_until_async(
                lambda: len(one.acceptor) == 1, "the strangers' connections are closed", poll_s=0.001
            )
            for who in halted:
                assert await who.is_closed()
                who.writer.close()
            assert visitor.errors == []
            visitor.connection.close()

    run(test)


def test_an_exchange_that_began_before_the_secret_changed_proves_only_what_is_accepted_now() -> None:
    async def test() -> None:
        async with door() as one, stranger(one) as who:
            await who.handshake()
            client = ScramClient(MECHANISM, "broker-7", SECRET)
            challenge = (await who.say(client.first())).auth_bytes
            one.inner_wire.set_secret(ClusterSecret((OTHER_SECRET,)))
            proof = client.answer(challenge)
            assert proof is not None and (await who.say(proof)).error_code == REFUSED
            assert await who.is_closed()

    run(test)


def test_a_broker_without_a_secret_offers_no_sasl() -> None:
    async def test() -> None:
        async with door() as one, stranger(one) as who:
            one.inner_wire._secret = None
            assert (await who.handshake()).error_code == ILLEGAL
            assert (await who.say(b"")).error_code == ILLEGAL
            (connection,) = one.acceptor._connections
            assert connection.session.handshake is Handshake.COMPLETE

    run(test)


def test_what_only_brokers_ask_is_not_advertised() -> None:
    from spark_kafkalite.broker.requests import handlers
    from spark_kafkalite.broker.requests.dispatch import SERVED_APIS
    from spark_kafkalite.broker.requests.handlers import api_versions
    from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest

    handlers.load()
    exchange: Any = SimpleNamespace(api_version=0, session=SimpleNamespace(versions_answered=lambda: None))
    context: Any = None
    told = {api.api_key for api in api_versions.handle(context, exchange, ApiVersionsRequest()).api_keys}
    assert set(SERVED_APIS) - told == {ApiKey.COMPARE_REPLICAS}


def test_many_connections_are_looked_through_in_slices() -> None:
    clock = SliceClock()
    looks = 0

    class Idle:
        """A connection at which nothing happens."""

        closed = is_paused = False

        def overdue(self, _: float) -> None:
            nonlocal looks
            looks += 1
            clock.take(SLICE_S / 10)

    async def test() -> None:
        async with door() as one:
            acceptor, many = one.acceptor, [Idle() for _ in range(200)]
            assert acceptor._sweep_timer is not None
            acceptor._sweep_timer.cancel()
            acceptor.slices = Slices(one.loop, clock)
            acceptor._connections |= dict.fromkeys(many)  # type: ignore[arg-type]
            acceptor._sweep()
            assert 0 < looks < len(many) / 2
            await wait_until_async(lambda: looks >= len(many), "every connection is looked at")
            for each in many:
                del acceptor._connections[each]  # type: ignore[arg-type]

    run(test)
