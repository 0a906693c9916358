"""Which quota is a client's, which values and entities can be, and how they are stored."""

from __future__ import annotations

import itertools
import logging
import math

import pytest

from spark_kafkalite.broker.quotas.limits import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    Entity,
    FoundQuota,
    QuotaLimits,
    checked_entity,
    entity_of,
    entity_path,
    value_text,
)
from spark_kafkalite.errors import InvalidRequest

# In the order in which they hold: the entity, and whether each client id has an allowance of its own, each user.
ORDER: list[tuple[Entity, bool, bool]] = [
    ({"user": "u", "client-id": "c"}, True, True),
    ({"user": "u", "client-id": None}, True, True),
    ({"user": "u"}, False, True),
    ({"user": None, "client-id": "c"}, True, True),
    ({"user": None, "client-id": None}, True, True),
    ({"user": None}, False, True),
    ({"client-id": "c"}, True, False),
    ({"client-id": None}, True, False),
]


def test_the_first_that_exists_holds_whatever_others_there_are() -> None:
    for present in itertools.product([False, True], repeat=len(ORDER)):
        limits = QuotaLimits()
        for number, (is_there, (entity, _, _)) in enumerate(zip(present, ORDER, strict=True)):
            # Others have a quota of another kind.
            kind = PRODUCER_BYTE_RATE if is_there else CONSUMER_BYTE_RATE
            limits.take(entity_path(entity), {kind: str(number + 1)})
        found = limits.of_client(PRODUCER_BYTE_RATE, "u", "c")
        if True not in present:
            assert found is None
            continue
        first = present.index(True)
        _, by_client, by_user = ORDER[first]
        assert found == FoundQuota(first + 1, "u" if by_user else "", "c" if by_client else "")


def test_other_clients_have_no_part_in_it() -> None:
    limits = QuotaLimits()
    limits.take(entity_path({"user": "u", "client-id": "c"}), {PRODUCER_BYTE_RATE: "1"})
    assert limits.of_client(PRODUCER_BYTE_RATE, "u", "d") is None
    assert limits.of_client(PRODUCER_BYTE_RATE, "v", "c") is None
    assert limits.of_client(CONSUMER_BYTE_RATE, "u", "c") is None
    # A user or client id of this very text is not the default.
    limits.take(entity_path({"client-id": None}), {CONSUMER_BYTE_RATE: "7"})
    limits.take(entity_path({"client-id": "<default>"}), {CONSUMER_BYTE_RATE: "8"})
    assert limits.of_client(CONSUMER_BYTE_RATE, "u", "<default>") == FoundQuota(8, "", "<default>")
    assert limits.of_client(CONSUMER_BYTE_RATE, "u", "x") == FoundQuota(7, "", "x")


@pytest.mark.parametrize("name", ["a", "a/b", "100%", "\0", ".", "..", "~*+ ", "<default>", "ü☃", "a\nb", None])
def test_every_name_has_a_path_of_its_own_and_comes_back(name: str | None) -> None:
    entities: list[Entity] = [
        {"user": name}, {"client-id": name}, {"user": name, "client-id": name}, {"user": "u", "client-id": name},
    ]  # fmt: skip
    paths = [entity_path(entity) for entity in entities]
    assert len(set(paths)) == len(paths)
    for entity, path in zip(entities, paths, strict=True):
        assert entity_of(path) == entity
        assert all(part not in ("", ".", "..") for part in path.split("/"))
        assert "\0" not in path


@pytest.mark.parametrize(
    "path", ["topics/t", "users", "users/u/clients", "users/u/x/c", "clients/c/users/u", "", "users//"]
)
def test_other_paths_are_no_entities(path: str) -> None:
    assert entity_of(path) is None


def test_quotas_that_cannot_be_enforced_are_ignored_and_named(caplog: pytest.LogCaptureFixture) -> None:
    limits = QuotaLimits()
    stored = {
        "controller_mutation_rate": "5", PRODUCER_BYTE_RATE: "many", CONSUMER_BYTE_RATE: "-1",
        "request_percentage": "0", "SCRAM-SHA-256": "salt=x", "connection_creation_rate": "7",
    }  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert limits.take("users/u", stored)
    assert limits.all == {"users/u": {"request_percentage": 0.0}}
    assert [record.getMessage().split()[1] for record in caplog.records] == [
        "controller_mutation_rate", "producer_byte_rate=many", "consumer_byte_rate=-1",
    ]  # fmt: skip
    assert not limits.take("users/u", {"request_percentage": "0"}), "nothing has changed"
    assert limits.take("users/u", {"SCRAM-SHA-256": "salt=x"})
    assert not limits.clients_have_some


def test_an_address_has_its_own_quota_or_the_default() -> None:
    limits = QuotaLimits()
    assert not limits.addresses_have_some
    limits.take(entity_path(checked_entity([("ip", "::ffff:10.0.0.1")])), {"connection_creation_rate": "3"})
    limits.take("ips/<default>", {"connection_creation_rate": "9"})
    limits.take(entity_path(checked_entity([("ip", "FE80::0:1")])), {"connection_creation_rate": "4"})
    assert [limits.of_address(each) for each in ("10.0.0.1", "10.0.0.2", "fe80::1")] == [3, 9, 4]
    assert limits.addresses_have_some and not limits.clients_have_some
    for path in list(limits.all):
        limits.take(path, {})
    assert not limits.addresses_have_some and not limits.all


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "")], "Empty user not supported"),
        ([("user", "a"), ("user", "b")], "duplicate entity entry user"),
        ([("group", "a")], "Unhandled client quota entity type: group"),
        ([("ip", "10.0.0.1"), ("user", "a")], "IP entity should not be combined"),
        ([("ip", "somewhere")], "somewhere is not a valid IP"),
        ([("client-id", "x" * 1001)], "1001 characters, at most 1000"),
    ],
)
def test_entities_that_cannot_be(parts: list[tuple[str, str | None]], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        checked_entity(parts)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("producer_byte_rate", 0.0, "must be greater than 0"),
        ("producer_byte_rate", -1.0, "must be greater than 0"),
        ("consumer_byte_rate", math.nan, "must be greater than 0"),
        ("producer_byte_rate", 1e300, "too large for a LONG: 1e\\+300, at most 9223372036854775807"),
        ("producer_byte_rate", math.inf, "too large for a LONG"),
        ("producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value"),
        ("producer_byte_rate", 1e-300, "must be at least 1, but it is 1e-300"),
        ("request_percentage", math.inf, "must be finite"),
        ("connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate; known here are"),
        ("controller_mutation_rate", 1.0, "Invalid configuration key controller_mutation_rate: this broker does not"),
        ("retention.ms", 1.0, "Invalid configuration key retention.ms"),
    ],
)
def test_values_that_cannot_be(key: str, value: float, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        value_text({"user": "u"}, key, value)


def test_values_are_stored_as_kafka_stores_them() -> None:
    user, address = {"user": "u"}, {"ip": None}
    assert value_text(user, "producer_byte_rate", 1048576.0) == "1048576"
    assert value_text(user, "producer_byte_rate", 0.9999999) == "1"
    assert value_text(user, "producer_byte_rate", float(2**63)) == str(2**63 - 1)
    assert value_text(user, "request_percentage", 12.5) == "12.5"
    assert value_text(user, "request_percentage", 1e300) == "1e+300"
    assert value_text(address, "connection_creation_rate", 3.0) == "3"
    with pytest.raises(InvalidRequest, match="too large for an INT"):
        value_text(address, "connection_creation_rate", 2.0**31)
