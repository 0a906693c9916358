"""What clients are charged with, who shares what, and how many are remembered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_kafkalite.broker.network.session import Session
from spark_kafkalite.broker.quotas import client_quotas
from spark_kafkalite.broker.quotas.allowance import Windows
from spark_kafkalite.broker.quotas.client_quotas import ClientQuota, ClientQuotas
from spark_kafkalite.broker.quotas.limits import QuotaLimits
from spark_kafkalite.testing.manual_clock import ManualClock
from spark_kafkalite.wire.api_keys import ApiKey


class Bed:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.limits = QuotaLimits()
        self.quotas = ClientQuotas(self.clock.monotonic_s, Windows(), self.limits)

    def set(self, path: str, **quotas: float) -> None:
        self.limits.take(path, {key: str(value) for key, value in quotas.items()})
        self.quotas.limits_changed()

    def of(self, user: str = "ANONYMOUS", client_id: str | None = "c", broker_id: int | None = None) -> ClientQuota:
        quota = self.quotas.of(session(user, broker_id), client_id)
        assert quota is not None
        return quota


def session(user: str = "ANONYMOUS", broker_id: int | None = None) -> Session:
    made = Session("127.0.0.1:1", SimpleNamespace(name="PLAINTEXT"))  # type: ignore[arg-type]
    made.principal, made.broker_id = f"User:{user}", broker_id
    return made


def asked(key: int, request_bytes: int = 100, worked_s: float = 0.0) -> Any:
    return SimpleNamespace(api_key=key, request_bytes=request_bytes, worked_s=worked_s)


@pytest.fixture
def bed() -> Bed:
    return Bed()


def test_without_quotas_nobody_has_one(bed: Bed) -> None:
    assert not bed.quotas.are_set
    bed.set("ips/<default>", connection_creation_rate=5)
    assert not bed.quotas.are_set, "those of addresses are no concern of requests"
    bed.set("clients/other", producer_byte_rate=1)
    assert bed.quotas.are_set
    assert bed.quotas.of(session(), "c") is None
    bed.set("clients/other")
    assert not bed.quotas.are_set


def test_brokers_are_exempt_and_a_user_of_their_name_is_not(bed: Bed) -> None:
    bed.set("users/<default>", producer_byte_rate=1)
    assert bed.quotas.of(session("broker-1", broker_id=1), "c") is None
    assert bed.quotas.of(session("broker-1"), "c") is not None


def test_produce_pays_with_its_requests_and_fetch_with_its_answers(bed: Bed) -> None:
    bed.set("clients/c", producer_byte_rate=1000, consumer_byte_rate=1000)
    quota = bed.of()
    assert quota.throttle_time_ms(asked(ApiKey.PRODUCE, 1500), 0) == 500
    # A fetch below its quota is answered, however much it is; the next ones pay for it.
    assert quota.throttle_time_ms(asked(ApiKey.FETCH), 4000) == 0
    assert quota.throttle_time_ms(asked(ApiKey.FETCH), 4000) == 3000
    bed.clock.advance(s=2)
    # What was not sent was not charged.
    assert quota.throttle_time_ms(asked(ApiKey.FETCH), 4000) == 1000
    assert quota.throttle_time_ms(asked(ApiKey.METADATA, 10**9), 0) == 0
    bed.clock.advance(s=1)
    assert quota.throttle_time_ms(asked(ApiKey.FETCH), 10) == 0


def test_an_answer_is_not_larger_than_what_is_left(bed: Bed) -> None:
    bed.set("clients/c", consumer_byte_rate=1000)
    quota = bed.of()
    assert quota.most_fetch_bytes(50) == 50
    assert quota.most_fetch_bytes(10**9) == 1001
    bed.clock.advance(s=100)
    assert quota.most_fetch_bytes(10**9) == 2001
    bed.set("clients/c", producer_byte_rate=1)
    assert bed.of().most_fetch_bytes(10**9) == 10**9


def test_one_pause_is_bounded_and_the_rest_is_owed(bed: Bed) -> None:
    bed.set("clients/c", producer_byte_rate=1000)
    quota = bed.of()
    assert quota.throttle_time_ms(asked(ApiKey.PRODUCE, 21_000), 0) == 15_000
    bed.clock.advance(s=15)
    assert quota.throttle_time_ms(asked(ApiKey.PRODUCE, 1000), 0) == 6000


def test_requests_pay_with_the_time_of_the_loop(bed: Bed) -> None:
    bed.set("clients/c", request_percentage=10)
    quota = bed.of()
    assert quota.counts_time
    assert quota.throttle_time_ms(asked(ApiKey.METADATA, worked_s=0.1), 0) == 0
    assert quota.throttle_time_ms(asked(ApiKey.METADATA, worked_s=0.05), 0) == 500
    assert quota.throttle_time_ms(asked(ApiKey.METADATA, worked_s=10), 0) == 1000, "a window at most"
    bed.set("clients/c", producer_byte_rate=10)
    assert not bed.of().counts_time


def test_a_fetch_throttled_for_its_time_is_not_charged_with_bytes(bed: Bed) -> None:
    bed.set("clients/c", request_percentage=1, consumer_byte_rate=1000)
    quota = bed.of()
    assert quota.throttle_time_ms(asked(ApiKey.FETCH, worked_s=1), 5000) == 1000
    bed.clock.advance(s=200)
    assert quota.throttle_time_ms(asked(ApiKey.FETCH), 2000) == 0
    assert quota.throttle_time_ms(asked(ApiKey.FETCH), 2000) == 0, "nothing is owed"


def test_clients_of_a_user_share_or_do_not(bed: Bed) -> None:
    bed.set("users/alice", producer_byte_rate=1000)
    bed.set("clients/<default>", producer_byte_rate=1000)
    charge = asked(ApiKey.PRODUCE, 1000)
    assert bed.of("alice", "a").throttle_time_ms(charge, 0) == 0
    assert bed.of("alice", "b").throttle_time_ms(charge, 0) == 1000
    assert [bed.of("bob", each).throttle_time_ms(charge, 0) for each in ("a", "b", "a")] == [0, 0, 1000]
    # By client id alone, whoever the user is.
    assert bed.of("carol", "b").throttle_time_ms(charge, 0) == 1000


def test_another_quota_holds_at_once_and_what_is_owed_stays(bed: Bed) -> None:
    bed.set("clients/c", producer_byte_rate=1000)
    assert bed.of().throttle_time_ms(asked(ApiKey.PRODUCE, 11_000), 0) == 10_000
    bed.set("clients/c", producer_byte_rate=10_000)
    assert bed.of().throttle_time_ms(asked(ApiKey.PRODUCE, 0), 0) == 1000
    bed.set("clients/c")
    assert bed.quotas.of(session(), "c") is None


def test_a_million_client_ids_take_little_memory(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MOST_ALLOWANCES", 100)
    bed.set("clients/<default>", producer_byte_rate=1000)
    one = session()
    for number in range(1000):
        bed.clock.advance(ms=1)
        assert bed.quotas.of(one, f"client-{number}") is not None
        assert len(bed.quotas) <= 100
        assert len(bed.quotas._clients) <= 100
    long_id = "x" * 30_000
    assert bed.quotas.of(one, long_id) is not None
    assert max(len(client_id) for _, client_id in bed.quotas._clients) <= 64


def test_a_long_client_id_has_its_quota(bed: Bed) -> None:
    name = "y" * 999
    bed.set(f"clients/{name}", producer_byte_rate=1000)
    assert bed.of(client_id=name) is bed.of(client_id=name)
    assert bed.quotas.of(session(), name + "y") is None


def test_finding_a_quota_costs_one_look_up(bed: Bed) -> None:
    bed.set("clients/c", producer_byte_rate=1000)
    one = session()
    first = bed.quotas.of(one, "c")
    # Without the limits: they are asked once.
    bed.quotas._limits = None  # type: ignore[assignment]
    assert bed.quotas.of(one, "c") is first
