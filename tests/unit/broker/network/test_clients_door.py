"""What clients meet on a listener with SASL: states, refusals that look alike, lifetimes, and brokers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import struct
from typing import Any

import pytest

from spark_kafkalite.broker.authentication.failure_delays import FailureDelays
from spark_kafkalite.broker.network import acceptor
from spark_kafkalite.broker.network.session import Handshake
from spark_kafkalite.errors import IllegalSaslState, SaslAuthenticationFailed
from spark_kafkalite.security.cluster_secret import MECHANISM, broker_user
from spark_kafkalite.security.scram import ScramClient, scram_credential
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.codec import encode_request
from spark_kafkalite.wire.messages.api_versions import ApiVersionsRequest
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from spark_kafkalite.wire.messages.sasl_handshake import SaslHandshakeRequest
from tests.patience import PATIENCE_S, wait_until_async
from tests.seeds import SEED
from tests.unit.broker.network.brokers_door import HEARTBEAT_VERSION, OTHER_SECRET, SECRET, Door, door
from tests.unit.broker.network.test_brokers_door import Stranger, run, stranger

REFUSED, ILLEGAL, UNSUPPORTED = SaslAuthenticationFailed.code, IllegalSaslState.code, 33
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-pass" user_bob="bob-pass";'
OF_CLIENTS: dict[str, object] = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "connection.failed.authentication.delay.ms": 20,
}


def clients_door(**more: object) -> Any:
    return door(**OF_CLIENTS | more)


def plain(user: str, password: str, authzid: str = "") -> bytes:
    return f"{authzid}\0{user}\0{password}".encode()


def add_scram(one: Door, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> None:
    one.credentials[mechanism, user] = scram_credential(mechanism, password, b"salt", 4096)


async def by_scram(who: Stranger, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> Any:
    assert (await who.handshake(mechanism)).error_code == 0
    client = ScramClient(mechanism, user, password)
    said: bytes | None = client.first()
    answer = None
    while said is not None:
        answer = await who.say(said)
        if answer.error_code:
            return answer
        said = client.answer(answer.auth_bytes)
    return answer


async def by_plain(who: Stranger, user: str, password: str, authzid: str = "") -> Any:
    assert (await who.handshake("PLAIN")).error_code == 0
    return await who.say(plain(user, password, authzid))


def session_of(one: Door) -> Any:
    (connection,) = one.acceptor._connections
    return connection.session


async def closes(who: Stranger, message: Any, version: int) -> None:
    """The broker closes the connection and answers nothing."""
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await who.ask(message, version)


def test_clients_are_known_by_name_however_they_authenticate() -> None:
    async def test() -> None:
        async with clients_door() as one:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                add_scram(one, "carol", "carol-pass", mechanism)
                async with stranger(one) as who:
                    assert await who.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
                    answer = await by_scram(who, "carol", "carol-pass", mechanism)
                    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
                    assert session_of(one).principal == "User:carol" and session_of(one).broker_id is None
                    await who.beat()
            async with stranger(one) as who:
                assert (await by_plain(who, "alice", "alice-pass", "alice")).error_code == 0
                assert session_of(one).principal == "User:alice"
                await who.beat()
                # Once is enough where sessions have no lifetime.
                assert (await who.handshake("PLAIN")).error_code == ILLEGAL
                assert (await who.say(plain("bob", "bob-pass"))).error_code == ILLEGAL
                await who.beat()
                assert session_of(one).principal == "User:alice"
            assert len(one.asked) == 4

    run(test)


def test_refusals_look_alike_are_delayed_and_close(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with clients_door(**{"connection.failed.authentication.delay.ms": 150}) as one:
            add_scram(one, "carol", "carol-pass")
            add_scram(one, "dave", "dave-pass", "SCRAM-SHA-256")
            answers = set()
            for user, password in (("carol", "wrong"), ("nobody", "x"), ("dave", "dave-pass"), ("broker-7", SECRET)):
                async with stranger(one) as who:
                    begun_s = one.loop.time()
                    answer = await by_scram(who, user, password)
                    assert one.loop.time() - begun_s >= 0.15
                    answers.add((answer.error_code, answer.error_message, answer.auth_bytes))
                    assert await who.is_closed()
            assert answers == {
                (
                    REFUSED,
                    "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                    "SCRAM-SHA-512",
                    b"",
                )
            }
            answers = set()
            for message in (plain("alice", "wrong"), plain("nobody", "x"), plain("alice", ""), plain("", ""), b"x"):
                async with stranger(one) as who:
                    await who.handshake("PLAIN")
                    answer = await who.say(message)
                    answers.add((answer.error_code, answer.error_message))
                    assert await who.is_closed()
            assert answers == {(REFUSED, "Authentication failed: Invalid username or password")}

    with caplog.at_level(logging.DEBUG):
        run(test)
    lines = [record.getMessage() for record in caplog.records if "SASL_PLAINTEXT by" in record.getMessage()]
    assert len(lines) == 2 + 5  # a few, and as many as a QuietLog writes of the kind for addresses that fail often
    assert "is refused as a broker" in lines[3]
    assert "by SCRAM-SHA-512 as user 'carol'" in lines[0] and "kafkalite users list" in lines[0]
    assert "alice-pass" not in caplog.text and "carol-pass" not in caplog.text


def test_challenges_do_not_tell_who_exists() -> None:
    async def test() -> None:
        async with clients_door() as one:
            one.credentials["SCRAM-SHA-512", "carol"] = scram_credential(
                "SCRAM-SHA-512", "x", b"3k1x5mcsl0vqpa0rgn1d4hj1qk", 4096
            )
            forms = set()
            for user in ("carol", "nobody", "nobody", "broker-7"):
                async with stranger(one) as who:
                    await who.handshake("SCRAM-SHA-512")
                    said = (await who.say(ScramClient("SCRAM-SHA-512", user, "x").first())).auth_bytes.decode()
                    _, salt, iterations = said.split(",")
                    forms.add((len(salt) // 4, iterations))
            assert forms == {(9, "i=4096")}

    run(test)


def test_what_is_served_before_authentication() -> None:
    async def test() -> None:
        async with clients_door() as one:
            beat = HeartbeatRequest()
            versions = ApiVersionsRequest(client_software_name="x", client_software_version="1")
            # A wrong name leaves the state; a good one allows SaslHandshake only.
            async with stranger(one) as who:
                bad = ApiVersionsRequest(client_software_name="", client_software_version="")
                assert (await who.ask(bad, 3)).error_code == 42
                assert (await who.ask(versions, 3)).error_code == 0
                await closes(who, versions, 3)
            for message, version in (
                (beat, HEARTBEAT_VERSION),
                (SaslAuthenticateRequest(auth_bytes=plain("alice", "alice-pass")), 2),
            ):
                async with stranger(one) as who:
                    await closes(who, message, version)
                async with stranger(one) as who:
                    await who.ask(versions, 3)
                    await closes(who, message, version)
            again = SaslHandshakeRequest(mechanism="PLAIN")
            for message, version in ((beat, HEARTBEAT_VERSION), (versions, 3), (again, 1)):
                async with stranger(one) as who:
                    await who.handshake("PLAIN")
                    await closes(who, message, version)
            assert one.asked == []

    run(test)


def test_requests_sent_ahead_of_the_proof_are_not_served() -> None:
    async def test() -> None:
        async with clients_door() as one, stranger(one) as who:
            for number, (message, version) in enumerate(
                (
                    (SaslHandshakeRequest(mechanism="PLAIN"), 1),
                    (SaslAuthenticateRequest(auth_bytes=plain("alice", "wrong")), 2),
                    (HeartbeatRequest(), HEARTBEAT_VERSION),
                )
            ):
                frame = encode_request(message, version, number, "ahead")
                who.writer.write(struct.pack(">i", len(frame)) + frame)
            assert not await who.is_closed()  # the first bytes of an answer
            async with asyncio.timeout(PATIENCE_S):
                with contextlib.suppress(ConnectionError):
                    await who.reader.read()
            assert one.asked == []

    run(test)


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER", "", "plain"])
def test_a_mechanism_that_is_not_offered_is_refused_with_those_that_are(mechanism: str) -> None:
    async def test() -> None:
        async with clients_door() as one, stranger(one) as who:
            answer = await who.handshake(mechanism)
            assert (answer.error_code, answer.mechanisms) == (
                UNSUPPORTED,
                ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"],
            )
            assert await who.is_closed()

    run(test)


@pytest.mark.parametrize("mechanisms", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_brokers_authenticate_on_the_listener_of_clients_whatever_its_mechanisms(mechanisms: str) -> None:
    async def test() -> None:
        async with clients_door(**{"sasl.enabled.mechanisms": mechanisms}) as one:
            add_scram(one, "carol", "carol-pass", MECHANISM)
            visitor = one.connect()
            await wait_until_async(lambda: visitor.connection.was_proved, "the broker authenticates")
            assert session_of(one).broker_id == 7
            visitor.connection.close()
            wrong = one.connect(secret=OTHER_SECRET)
            await wait_until_async(lambda: wrong.errors, "the broker is refused")
            # A client's user is no broker, and no broker's name is a user's.
            add_scram(one, broker_user(7), "client-pass", MECHANISM)
            async with stranger(one) as who:
                assert (await by_scram(who, broker_user(7), "client-pass", MECHANISM)).error_code == REFUSED
            async with stranger(one) as who:
                answer = await by_scram(who, "carol", "carol-pass", MECHANISM)
                assert answer.error_code == (0 if mechanisms == MECHANISM else REFUSED)

    run(test)


def test_on_another_listener_than_the_brokers_no_secret_makes_a_broker() -> None:
    async def test() -> None:
        async with clients_door() as one, stranger(one) as who:
            one.inner_wire.listener_name = "INNER"
            assert (await by_scram(who, "broker-7", SECRET, MECHANISM)).error_code == REFUSED

    run(test)


def test_a_session_expires_unless_the_client_authenticates_again() -> None:
    async def test() -> None:
        async with clients_door(**{"connections.max.reauth.ms": 3_600_000}) as one:
            async with stranger(one) as who:
                assert (await by_plain(who, "alice", "alice-pass")).session_lifetime_ms == 3_600_000
                session = session_of(one)
                # Not within a second.
                assert (await who.handshake("PLAIN")).error_code == ILLEGAL
                session.renewed_s -= 1
                assert (await by_plain(who, "alice", "alice-pass")).error_code == 0
                await who.beat()
                session.ends_s = session.renewed_s = 0.0
                await wait_until_async(lambda: session.handshake is Handshake.EXPIRED, "the session expires")
                # An expired one may authenticate again.
                assert (await by_plain(who, "alice", "alice-pass")).error_code == 0
                await who.beat()
                session.ends_s = 0.0
                await wait_until_async(lambda: session.handshake is Handshake.EXPIRED, "the session expires")
                await closes(who, HeartbeatRequest(), HEARTBEAT_VERSION)
            assert len(one.asked) == 2

    run(test)


@pytest.mark.parametrize(
    ("mechanism", "token", "code"),
    [
        ("PLAIN", plain("bob", "bob-pass"), REFUSED),
        ("PLAIN", plain("alice", "wrong"), REFUSED),
        ("SCRAM-SHA-512", b"", ILLEGAL),
    ],
)
def test_a_session_cannot_become_another_ones(mechanism: str, token: bytes, code: int) -> None:
    async def test() -> None:
        async with clients_door(**{"connections.max.reauth.ms": 3_600_000}) as one, stranger(one) as who:
            assert (await by_plain(who, "alice", "alice-pass")).error_code == 0
            session_of(one).renewed_s -= 1
            answer = await who.handshake(mechanism)
            if not answer.error_code:
                answer = await who.say(token)
            assert answer.error_code == code
            assert await who.is_closed()

    run(test)


def test_amid_a_renewal_nothing_else_is_served() -> None:
    async def test() -> None:
        async with clients_door(**{"connections.max.reauth.ms": 3_600_000}) as one, stranger(one) as who:
            await by_plain(who, "alice", "alice-pass")
            session_of(one).renewed_s -= 1
            await who.handshake("PLAIN")
            await closes(who, HeartbeatRequest(), HEARTBEAT_VERSION)
            assert one.asked == []

    run(test)


def test_tokens_without_headers_are_served_after_version_0() -> None:
    async def token(who: Stranger, said: bytes) -> bytes:
        who.writer.write(struct.pack(">i", len(said)) + said)
        (size,) = struct.unpack(">i", await who.reader.readexactly(4))
        return await who.reader.readexactly(size)

    async def test() -> None:
        async with clients_door() as one:
            add_scram(one, "carol", "carol-pass")
            async with stranger(one) as who:
                assert (await who.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)).error_code == 0
                assert await token(who, plain("alice", "alice-pass")) == b""
                await who.beat()
            async with stranger(one) as who:
                assert (await who.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 0)).error_code == 0
                client = ScramClient("SCRAM-SHA-512", "carol", "carol-pass")
                proof = client.answer(await token(who, client.first()))
                assert proof is not None and client.answer(await token(who, proof)) is None
                await who.beat()
                assert session_of(one).principal == "User:carol"
            async with stranger(one) as who:
                await who.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await token(who, plain("alice", "wrong"))
            assert len(one.asked) == 2

    run(test)


@pytest.mark.parametrize(("size_bytes", "is_taken"), [(2048, True), (2049, False)])
def test_requests_are_small_until_the_client_has_authenticated(size_bytes: int, is_taken: bool) -> None:
    async def test() -> None:
        async with clients_door(**{"sasl.server.max.receive.size": 2048}) as one, stranger(one) as who:
            # As many bytes as the header and the rest of the body leave.
            padding = size_bytes - len(encode_request(SaslHandshakeRequest(mechanism=""), 1, 1, "stranger"))
            message = SaslHandshakeRequest(mechanism="x" * padding)
            if is_taken:
                assert (await who.ask(message, 1)).error_code == UNSUPPORTED
            else:
                await closes(who, message, 1)

    run(test)


def test_a_broker_alone_may_be_on_its_own_sasl_listener_without_mechanisms() -> None:
    async def test() -> None:
        async with clients_door() as one:
            names = one.authentication.mechanisms(one.listener)
            assert names == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
            one.inner_wire.listener_name = "INNER"
            assert one.authentication.mechanisms(one.listener) == names

    run(test)


def test_api_versions_names_the_sasl_apis() -> None:
    async def test() -> None:
        async with clients_door() as one, stranger(one) as who:
            versions = await who.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
            spans = {each.api_key: (each.min_version, each.max_version) for each in versions.api_keys}
            assert spans[ApiKey.SASL_HANDSHAKE] == (0, 1) and spans[ApiKey.SASL_AUTHENTICATE] == (0, 2)

    run(test)


def test_a_crowd_that_does_not_authenticate_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_MOST_HANDSHAKES", 5)

    async def test() -> None:
        async with clients_door() as one, contextlib.AsyncExitStack() as crowd:
            good = await crowd.enter_async_context(stranger(one))
            await by_plain(good, "alice", "alice-pass")
            strangers = []
            for _ in range(7):
                who = await crowd.enter_async_context(stranger(one))
                await who.handshake("PLAIN")
                strangers.append(who)
            assert await strangers[0].is_closed() and await strangers[1].is_closed()
            assert len(one.acceptor) == 6
            await good.beat()
            # The youngest still may.
            assert (await strangers[6].say(plain("bob", "bob-pass"))).error_code == 0
            await strangers[6].beat()

    run(test)


def test_mutated_tokens_and_requests_are_survived(caplog: pytest.LogCaptureFixture) -> None:
    source = random.Random(SEED)
    print(f"seed {SEED}")

    def mutated(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(source.randrange(1, 4)):
            at = source.randrange(len(changed) + 1)
            kind = source.randrange(3)
            if kind == 0:
                changed[at:at] = source.randbytes(source.randrange(1, 9))
            elif kind == 1:
                del changed[at : at + source.randrange(1, 9)]
            elif at < len(changed):
                changed[at] = source.randrange(256)
        return bytes(changed) or b"\0"

    async def test() -> None:
        async with clients_door(**{"connection.failed.authentication.delay.ms": 0}) as one:
            add_scram(one, "carol", "carol-pass")
            # As from many addresses, so that no failure is answered later than others.
            one.authentication._delays = FailureDelays(0.0, itertools.count(step=100).__next__)
            for number in range(150):
                async with stranger(one) as who:
                    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                        if number % 3 == 0:
                            frame = encode_request(SaslHandshakeRequest(mechanism="PLAIN"), 1, 1, "x")
                            frame = mutated(frame)
                            who.writer.write(struct.pack(">i", len(frame)) + frame)
                            who.writer.write_eof()
                            await who.reader.read()
                        elif number % 3 == 1:
                            await who.handshake("PLAIN")
                            await who.say(mutated(plain("alice", "alice-pass")))
                        else:
                            await who.handshake("SCRAM-SHA-512")
                            client = ScramClient("SCRAM-SHA-512", "carol", "carol-pass")
                            first = client.first()
                            early = source.random() < 0.5
                            answer = await who.say(mutated(first) if early else first)
                            if not early:
                                await who.say(mutated(client.answer(answer.auth_bytes) or b""))
            async with stranger(one) as who:
                assert (await by_scram(who, "carol", "carol-pass")).error_code == 0
                await who.beat()

    with caplog.at_level(logging.DEBUG):
        run(test)
    # A handler that fails is one that was broken by what a stranger has sent.
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []
