"""What clients with a token meet on a listener with OAUTHBEARER."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import struct
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from spark_kafkalite.broker.network.session import Handshake
from spark_kafkalite.errors import SaslAuthenticationFailed
from spark_kafkalite.wire.codec import encode_request
from spark_kafkalite.wire.messages.heartbeat import HeartbeatRequest
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from tests.lab.token_endpoint import HttpAnswer, TokenEndpoint
from tests.patience import wait_until_async
from tests.seeds import SEED
from tests.unit.broker.network.brokers_door import HEARTBEAT_VERSION, Door, door
from tests.unit.broker.network.test_brokers_door import Stranger, run, stranger
from tests.unit.broker.network.test_clients_door import closes, session_of
from tests.unit.security.jwts import AUDIENCE, ISSUER, claims, jwk, key_set, token

REFUSED = SaslAuthenticationFailed.code
INVALID = b'{"status":"invalid_token"}'
GENERIC = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"


def first(text: str, *, authzid: str = "", fields: str = "") -> bytes:
    return f"n,{authzid and 'a=' + authzid},\1auth=Bearer {text}\1{fields}\1".encode()


@pytest.fixture
def through(tmp_path: Path) -> Callable[..., None]:
    """Run a test at a door that accepts tokens."""
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(jwk("RSA")))

    def at_door(test: Callable[[Door], Coroutine[Any, Any, None]], **more: object) -> None:
        async def opened() -> None:
            settings = {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": f"file://{path}",
                "sasl.oauthbearer.expected.issuer": ISSUER,
                "sasl.oauthbearer.expected.audience": AUDIENCE,
                "connection.failed.authentication.delay.ms": 20,
                **more,
            }
            async with door(**settings) as one:
                for keys in one.token_keys.values():
                    keys.start()
                await test(one)

        run(opened)

    return at_door


async def by_token(who: Stranger, said: bytes) -> Any:
    assert (await who.handshake("OAUTHBEARER")).error_code == 0
    return await who.say(said)


@pytest.mark.parametrize(
    "said",
    [
        first(token()),
        first(token(), authzid="alice"),
        first(token(), fields="traceId=1\1supportFeatureX=true\1"),
        first(token()).replace(b"Bearer ", b"bEaReR   "),
        first(token(claims(sub="al=2C,i=3Dce")), authzid="al=3D2C=2Ci=3D3Dce"),
    ],
)
def test_a_token_names_the_user(through: Callable[..., None], said: bytes) -> None:
    async def test(one: Door) -> None:
        async with stranger(one) as who:
            answer = await by_token(who, said)
            assert (answer.error_code, answer.auth_bytes) == (0, b"")
            assert session_of(one).principal in ("User:alice", "User:al=2C,i=3Dce")
            await who.beat()

    through(test)


def test_a_refused_token_is_answered_twice_and_is_in_no_log(
    through: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    forged = token(number=1)

    async def test(one: Door) -> None:
        async with stranger(one) as who:
            answer = await by_token(who, first(forged))
            assert (answer.error_code, answer.auth_bytes) == (0, INVALID)
            # Even the right token comes too late.
            answer = await who.say(first(token()))
            assert (answer.error_code, answer.error_message) == (REFUSED, INVALID.decode())
            assert await who.is_closed()
        async with stranger(one) as who:
            assert (await by_token(who, first(token(), authzid="bob"))).error_code == REFUSED
            assert await who.is_closed()
        # Two clients failed, and as many are counted.
        assert one.authentication._delays._failures["/127.0.0.1"][1] == 2
        assert one.asked == []

    with caplog.at_level(logging.DEBUG):
        through(test)
    lines = [record.getMessage() for record in caplog.records if "failed to authenticate" in record.getMessage()]
    refused = [each for each in lines if " on listener " in each]
    assert len(refused) == 2 and "the token is refused: its signature is wrong; check" in refused[0]
    assert "only as the user of its token" in refused[1]
    assert not [part for part in forged.split(".") if part in caplog.text]


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\1",
        b"n,,\1\1",
        b"n,,\1auth=Basic x\1\1",
        b"y,,\1auth=Bearer x.y.z\1\1",
        b"n,,\1auth=Bearer a.b.c\1auth=Bearer a.b.c\1\1",
        b"n,,\1host=x\1host=y\1auth=Bearer a.b.c\1\1",
        b"n,a=\xff,\1auth=Bearer a.b.c\1\1",
        b"n,,\1auth=Bearer " + b"x" * 40_000,
        b"n,,\1" + b"a=\1" * 10_000,
    ],
)
def test_a_message_of_another_form_is_refused_at_once(through: Callable[..., None], said: bytes) -> None:
    async def test(one: Door) -> None:
        async with stranger(one) as who:
            answer = await by_token(who, said)
            assert (answer.error_code, answer.error_message) == (REFUSED, GENERIC)
            assert await who.is_closed()

    through(test)


@pytest.mark.parametrize(("most_ms", "least", "most"), [(0, 540_000, 600_000), (60_000, 60_000, 60_000)])
def test_a_session_ends_with_its_token(through: Callable[..., None], most_ms: int, least: int, most: int) -> None:
    ends_s = int(time.time()) + 600

    async def test(one: Door) -> None:
        async with stranger(one) as who:
            answer = await by_token(who, first(token(claims(exp=ends_s))))
            assert least <= answer.session_lifetime_ms <= most
            session = session_of(one)
            session.renewed_s -= 1
            # Another token of the same user.
            assert (await by_token(who, first(token(claims(exp=ends_s + 1, jti="2"))))).error_code == 0
            session.renewed_s -= 1
            session.ends_s = 0.0
            await wait_until_async(lambda: session.handshake is Handshake.EXPIRED, "the session expires")
            # One of another user ends the connection.
            answer = await by_token(who, first(token(claims(sub="bob"))))
            assert answer.error_code == REFUSED
            assert await who.is_closed()
        async with stranger(one) as who:
            # It has expired, by less than the clocks may differ.
            answer = await by_token(who, first(token(claims(exp=int(time.time()) - 5, iat=1))))
            assert 0 < answer.session_lifetime_ms <= 3_600_000
            session_of(one).ends_s = 0.0
            await wait_until_async(lambda: session_of(one).handshake is Handshake.EXPIRED, "the session expires")
            await closes(who, HeartbeatRequest(), HEARTBEAT_VERSION)

    through(test, **{"connections.max.reauth.ms": most_ms, "sasl.oauthbearer.clock.skew.seconds": 3600})


def test_without_keys_nobody_gets_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing listens at the URL."""

    async def test() -> None:
        settings = {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1:1/jwks",
            "sasl.oauthbearer.allow.unverified.issuer": "true",
            "sasl.oauthbearer.allow.unverified.audience": "true",
        }
        async with door(**settings) as one:
            for keys in one.token_keys.values():
                keys.start()
            async with stranger(one) as who:
                assert (await by_token(who, first(token()))).auth_bytes == INVALID

    run(test)
    assert "keys of tokens cannot be fetched" in caplog.text and "no client can authenticate by it" in caplog.text


def test_a_client_that_leaves_while_keys_are_fetched(caplog: pytest.LogCaptureFixture) -> None:
    """Its answer has nowhere to go; a client that waits gets one."""
    with TokenEndpoint(subject="alice") as issuer:
        keys = json.dumps(issuer.jwks()).encode()
        issuer.keys_answer = HttpAnswer(200, keys, delay_s=2.0)

        async def test() -> None:
            settings = {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": issuer.jwks_url,
                "sasl.oauthbearer.expected.issuer": issuer.issuer,
                "sasl.oauthbearer.expected.audience": "kafka",
            }
            async with door(**settings) as one:
                for keys in one.token_keys.values():
                    keys.start()
                async with stranger(one) as leaves, stranger(one) as stays:
                    await leaves.handshake("OAUTHBEARER")
                    frame = encode_request(SaslAuthenticateRequest(auth_bytes=first(issuer.token())), 2, 9, "x")
                    leaves.writer.write(struct.pack(">i", len(frame)) + frame)
                    await leaves.writer.drain()
                    leaves.writer.transport.abort()
                    await wait_until_async(lambda: len(one.acceptor) == 1, "the broker to notice")
                    assert (await by_token(stays, first(issuer.token()))).error_code == 0
                    await stays.beat()
                    # No share of the request memory is left to the client that has gone.
                    assert list(one.acceptor._sharers.values()) == ["User:alice"]

        run(test)
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []


def test_mutated_tokens_are_survived(through: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    source = random.Random(SEED)
    print(f"seed {SEED}")
    good = first(token())

    async def test(one: Door) -> None:
        for _ in range(100):
            one.authentication._delays._failures.clear()
            changed = bytearray(good)
            for _ in range(source.randrange(1, 4)):
                at = source.randrange(len(changed))
                changed[at : at + source.randrange(3)] = source.randbytes(source.randrange(3))
            async with stranger(one) as who:
                await who.handshake("OAUTHBEARER")
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    await who.say(bytes(changed))
        async with stranger(one) as who:
            assert (await by_token(who, good)).error_code == 0

    with caplog.at_level(logging.DEBUG):
        through(test, **{"connection.failed.authentication.delay.ms": 0})
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR] == []
