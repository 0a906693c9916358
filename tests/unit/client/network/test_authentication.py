"""Connections that authenticate: each mechanism, what a broker refuses, and sessions that are renewed in time."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spark_kafkalite.client.config import ClientConfig, admin_config
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    BrokerUnreachable,
    HandshakeFailed,
    IllegalSaslState,
    NoBrokerThere,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from spark_kafkalite.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from tests.lab.model_broker import ModelBroker
from tests.lab.model_security import ModelListener, ModelSession
from tests.patience import PATIENCE_S
from tests.seeds import SEED

USERS = {"alice": "alice-secret"}


def config(mechanism: str = "PLAIN", password: str = "alice-secret", **more: object) -> ClientConfig:
    return admin_config(
        {
            "bootstrap.servers": "model:1",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        },
        more,
    )


def opened(broker: ModelBroker, settings: ClientConfig, clock: Clock = SYSTEM_CLOCK) -> BrokerConnection:
    return broker.open("model", 1, settings, Deadline.after_ms(20_000, clock))


def ask(connection: BrokerConnection, clock: Clock = SYSTEM_CLOCK) -> Any:
    return connection.request(ApiKey.METADATA, MetadataRequest(), Deadline.after_ms(20_000, clock))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def listener(clock: ManualClock) -> ModelListener:
    return ModelListener(users=USERS, session_lifetime_ms=10_000, clock=clock)


@pytest.fixture
def broker(listener: ModelListener) -> Iterator[ModelBroker]:
    made = ModelBroker({"t": 1}, listener=listener)
    yield made
    made.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_each_mechanism_lets_in(broker: ModelBroker, mechanism: str) -> None:
    connection = opened(broker, config(mechanism))
    assert ask(connection).brokers
    connection.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused_with_the_brokers_words_and_what_to_check(
    broker: ModelBroker, mechanism: str
) -> None:
    with pytest.raises(SaslAuthenticationFailed, match=r"model:1 .*Invalid credentials.*sasl\.password") as caught:
        opened(broker, config(mechanism, "wrong-canary"))
    assert "wrong-canary" not in str(caught.value)


def test_a_mechanism_that_is_not_offered_is_told_with_those_that_are(
    broker: ModelBroker, listener: ModelListener
) -> None:
    listener.mechanisms = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    with pytest.raises(
        UnsupportedSaslMechanism, match=r"sasl\.mechanism=PLAIN; it offers: SCRAM-SHA-256, SCRAM-SHA-512"
    ):
        opened(broker, config("PLAIN"))


def test_a_listener_that_does_not_authenticate_says_so() -> None:
    broker = ModelBroker({"t": 1})
    with pytest.raises(IllegalSaslState, match=r"set security\.protocol=PLAINTEXT"):
        opened(broker, config())
    broker.close()


def test_who_does_not_authenticate_is_told_which_setting_to_change(broker: ModelBroker) -> None:
    plain = ClientConfig(("model:1",))
    with pytest.raises(HandshakeFailed, match=r"set security\.protocol=SASL_PLAINTEXT"):
        ask(opened(broker, plain))


def test_a_client_that_is_refused_says_so_at_its_first_request(broker: ModelBroker) -> None:
    cluster = ClusterClient(config(password="wrong"), SYSTEM_CLOCK, broker.open)
    with pytest.raises(SaslAuthenticationFailed):
        cluster.refresh(["t"], Deadline.after_ms(20_000))
    assert broker.opened == 1
    cluster.close()


def test_a_broker_that_hangs_up_amid_authentication_may_be_one_that_stops(broker: ModelBroker) -> None:
    broker.listener.users = {}

    class Hangs(dict[str, str]):
        def get(self, *_: object) -> Any:
            raise ConnectionResetError

    broker.listener.users = Hangs()
    with pytest.raises(HandshakeFailed, match="authenticate"):
        opened(broker, config())


# Sessions that end ----------------------------------------------------------------------------------------------------


def test_a_session_is_renewed_before_it_ends_and_not_much_before(
    broker: ModelBroker, listener: ModelListener, clock: ManualClock
) -> None:
    for _ in range(20):
        connection = opened(broker, config(), clock)
        clock.advance(ms=8_400)
        renewals = listener.renewals
        ask(connection, clock)
        assert listener.renewals == renewals
        clock.advance(ms=1_150)
        ask(connection, clock)
        assert listener.renewals == renewals + 1
        connection.close()
    assert not listener.closed


def test_an_idle_connection_is_renewed_with_its_next_request_though_its_session_has_ended(
    broker: ModelBroker, listener: ModelListener, clock: ManualClock
) -> None:
    connection = opened(broker, config(), clock)
    clock.advance(s=3600)
    ask(connection, clock)
    assert listener.renewals == 1 and not listener.closed
    connection.close()


def test_without_a_lifetime_nothing_is_renewed(
    broker: ModelBroker, listener: ModelListener, clock: ManualClock
) -> None:
    listener.session_lifetime_ms = 0
    connection = opened(broker, config(), clock)
    clock.advance(s=1e6)
    ask(connection, clock)
    assert listener.authentications == 1
    connection.close()


def test_answers_that_are_outstanding_at_a_renewal_come_in_their_order(
    broker: ModelBroker, listener: ModelListener, clock: ManualClock
) -> None:
    source = random.Random(SEED)
    served = threading.Semaphore(0)
    broker.answer_last = lambda *_: served.release()
    connection = opened(broker, config(), clock)
    asked: list[str] = []
    got: list[str] = []
    for number in range(400):
        if source.random() < 0.5 or not len(asked) - len(got):
            topic = MetadataRequestTopic(name=f"t{number}")
            connection.send(ApiKey.METADATA, MetadataRequest(topics=[topic]))
            asked.append(f"t{number}")
            # Time must not jump while a request is on its way: the session may have ended when it arrives.
            assert served.acquire(timeout=PATIENCE_S)
        else:
            answer = connection.receive(Deadline.after_ms(20_000, clock))
            got.append(answer.topics[0].name)
        clock.advance(ms=source.choice([0, 100, 2_000]))
    while len(got) < len(asked):
        got.append(connection.receive(Deadline.after_ms(20_000, clock)).topics[0].name)
    assert got == asked, f"seed {SEED}"
    assert listener.renewals > 10 and not listener.closed
    connection.close()


def test_a_renewal_that_is_refused_is_a_broken_connection_and_the_next_one_tells_why(
    broker: ModelBroker, listener: ModelListener, clock: ManualClock
) -> None:
    connection = opened(broker, config(), clock)
    listener.users = {"alice": "rotated"}
    clock.advance(s=10)
    with pytest.raises(BrokerUnreachable, match="Invalid credentials"):
        ask(connection, clock)
    assert connection.closed


def test_short_requests_go_on_while_sessions_end(
    broker: ModelBroker, listener: ModelListener, clock: ManualClock
) -> None:
    cluster = ClusterClient(config(), clock, broker.open)
    for _ in range(50):
        cluster.refresh(["t"], Deadline.after_ms(20_000, clock))
        clock.advance(ms=4_000)
    assert broker.opened <= 2 and listener.renewals > 10 and not listener.closed
    cluster.close()


def test_a_renewal_that_fails_costs_a_new_connection_and_no_error(
    broker: ModelBroker, listener: ModelListener, clock: ManualClock
) -> None:
    cluster = ClusterClient(config(), clock, broker.open)
    cluster.refresh(["t"], Deadline.after_ms(20_000, clock))
    opened_before = broker.opened
    broker.break_connections()
    clock.advance(s=10)
    cluster.refresh(["t"], Deadline.after_ms(20_000, clock))
    assert broker.opened > opened_before
    cluster.close()


# Giving up ------------------------------------------------------------------------------------------------------------


def test_what_hangs_up_is_given_up_after_some_seconds_when_it_was_never_reached(clock: ManualClock) -> None:
    tries = 0

    def hang_up(*way: Any) -> BrokerConnection:
        nonlocal tries
        tries += 1
        clock.advance(ms=500)
        ours, theirs = socket.socketpair()
        theirs.close()
        return BrokerConnection.over(ours, *way)

    cluster = ClusterClient(
        replace(ClientConfig(("model:1", "model:2")), reconnect_backoff_ms=0, reconnect_backoff_max_ms=0),
        clock,
        hang_up,
    )
    begun_s = clock.monotonic_s()
    with pytest.raises(NoBrokerThere, match=r"model:1.*model:2.*set security.protocol=SSL"):
        cluster.refresh(["t"], Deadline.after_ms(60_000, clock))
    assert 7.5 < clock.monotonic_s() - begun_s < 10
    assert tries == 16
    cluster.close()


@pytest.mark.parametrize(("count", "share_s"), [(1, 8.0), (2, 4.0), (3, 8 / 3), (8, 1.5)])
def test_silent_addresses_share_the_time_after_which_a_client_gives_up(
    clock: ManualClock, count: int, share_s: float
) -> None:
    shares_s: list[float] = []

    def be_silent(host: str, port: int, config: ClientConfig, deadline: Deadline, half_open: Any) -> BrokerConnection:
        shares_s.append(deadline.left_s())
        clock.advance(s=deadline.left_s())
        raise HandshakeFailed(f"{host} is silent")

    cluster = ClusterClient(ClientConfig(tuple(f"model:{port}" for port in range(1, count + 1))), clock, be_silent)
    with pytest.raises(NoBrokerThere, match="model is silent"):
        cluster.refresh(["t"], Deadline.after_ms(60_000, clock))
    assert shares_s == pytest.approx([share_s] * count, abs=0.01)
    cluster.close()


def test_what_hangs_up_is_tried_on_once_the_cluster_was_reached(broker: ModelBroker, clock: ManualClock) -> None:
    hangs = False

    def hang_up(*way: Any) -> BrokerConnection:
        if not hangs:
            return broker.open(*way)
        clock.advance(ms=500)
        ours, theirs = socket.socketpair()
        theirs.close()
        return BrokerConnection.over(ours, *way)

    cluster = ClusterClient(replace(config(), reconnect_backoff_ms=0, reconnect_backoff_max_ms=0), clock, hang_up)
    cluster.refresh(["t"], Deadline.after_ms(20_000, clock))
    hangs = True
    broker.break_connections()
    begun_s = clock.monotonic_s()
    with pytest.raises(BrokerUnreachable):
        cluster.refresh(["t"], Deadline.after_ms(60_000, clock))
    assert clock.monotonic_s() - begun_s > 55
    cluster.close()


@pytest.fixture
def silent_renewals(broker: ModelBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that lets sessions end, and from then on has the broker answer no renewal."""
    over = threading.Event()

    def wait(session: ModelSession, request: object) -> None:
        assert over.wait(PATIENCE_S)
        raise ConnectionError

    def begin() -> None:
        monkeypatch.setattr(ModelSession, "_handshake", wait)
        clock.advance(s=10)

    yield begin
    over.set()


def test_a_request_waits_for_a_renewal_no_longer_than_for_its_answer(
    broker: ModelBroker, clock: ManualClock, silent_renewals: Any
) -> None:
    connection = opened(broker, config(socket_connection_setup_timeout_ms=3_600_000), clock)
    silent_renewals()
    # The broker is silent until the test ends.
    with pytest.raises(BrokerUnreachable, match=r"authenticating again .* timed out"):
        connection.request(ApiKey.METADATA, MetadataRequest(), Deadline.after_ms(100))
    assert connection.closed


def test_a_renewal_takes_no_longer_than_opening_a_connection_may(
    broker: ModelBroker, clock: ManualClock, silent_renewals: Any
) -> None:
    connection = opened(broker, config(socket_connection_setup_timeout_ms=100), clock)
    silent_renewals()
    # The broker is silent until the test ends.
    with pytest.raises(BrokerUnreachable, match=r"authenticating again .* timed out"):
        connection.renew(Deadline.after_ms(3_600_000))


def test_what_comes_before_authentication_is_bounded(broker: ModelBroker, listener: ModelListener) -> None:
    listener.mechanisms = ("SCRAM-SHA-256", *["X" * 32_000] * 40)
    with pytest.raises(HandshakeFailed, match="announces an answer of 128"):
        opened(broker, config())


def test_what_a_broker_says_becomes_one_printable_line(
    broker: ModelBroker, listener: ModelListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "no\x1b[2J\nTHE NEXT LINE" + "!" * 5000
    refusal = SaslAuthenticateResponse(error_code=SaslAuthenticationFailed.code, error_message=said)
    monkeypatch.setattr(ModelSession, "_authenticate", lambda *_: refusal)
    with pytest.raises(SaslAuthenticationFailed) as caught:
        opened(broker, config())
    listener.mechanisms = ("\x1b]0;x\x07",)
    with pytest.raises(UnsupportedSaslMechanism) as other:
        opened(broker, config())
    assert "no?[2J?THE NEXT LINE" in str(caught.value) and len(str(caught.value)) < 1500
    assert str(caught.value).isprintable() and str(other.value).isprintable()
