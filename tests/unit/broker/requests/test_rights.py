"""The one table of rights: each served API has its entry, and the entries are rights that exist."""

from __future__ import annotations

import pytest

from spark_kafkalite.acls import OPERATIONS
from spark_kafkalite.broker.requests import handlers
from spark_kafkalite.broker.requests.dispatch import SERVED_APIS, handles
from spark_kafkalite.errors import ClusterAuthorizationFailed, TopicAuthorizationFailed
from spark_kafkalite.wire import rights
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.rights import NEEDS, refusal

# What a client may ask before it has logged in, and the address book of the cluster.
FOR_EVERYBODY = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.DESCRIBE_CLUSTER}


def test_every_served_api_needs_a_right_or_is_known_to_need_none() -> None:
    handlers.load()
    assert SERVED_APIS
    assert {key for key, api in SERVED_APIS.items() if not api.needs} == FOR_EVERYBODY & set(SERVED_APIS)
    assert {key: api.needs for key, api in SERVED_APIS.items()} == {key: NEEDS[ApiKey(key)] for key in SERVED_APIS}


def test_every_api_of_the_protocol_has_an_entry() -> None:
    assert set(NEEDS) == set(ApiKey)


@pytest.mark.parametrize("key", NEEDS, ids=lambda key: key.name)
def test_an_entry_names_operations_that_exist_on_its_resource(key: ApiKey) -> None:
    for need in NEEDS[key]:
        for operation, resource in ((need.operation, need.resource), *need.instead):
            assert operation in OPERATIONS[resource]
            assert resource in rights.REFUSALS


def test_an_api_without_an_entry_cannot_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(NEEDS, ApiKey.DESCRIBE_CLUSTER)
    with pytest.raises(RuntimeError, match=r"no entry in wire\.rights\.NEEDS"):
        handles(ApiKey.DESCRIBE_CLUSTER, 0, 1)(lambda *_: None)


def test_a_need_is_said_in_the_words_of_acls() -> None:
    said = {key: [str(each) for each in NEEDS[key]] for key in NEEDS}
    assert said[ApiKey.FETCH] == ["READ on the topic"]
    assert said[ApiKey.LIST_OFFSETS] == ["DESCRIBE on the topic (READ, WRITE, DELETE and ALTER include it)"]
    assert said[ApiKey.FIND_COORDINATOR][0] == "DESCRIBE on the group (READ and DELETE include it)"
    assert said[ApiKey.LIST_CONFIG_RESOURCES] == ["DESCRIBE_CONFIGS on the cluster (ALTER_CONFIGS includes it)"]
    assert said[ApiKey.CREATE_TOPICS] == ["CREATE on the topic, or CREATE on the cluster"]
    assert said[ApiKey.INIT_PRODUCER_ID][0] == (
        "IDEMPOTENT_WRITE on the cluster, or WRITE on a topic; without either, set enable.idempotence=false"
    )


def test_a_refusal_names_the_right_of_its_kind_of_resource() -> None:
    group = refusal(ApiKey.OFFSET_COMMIT, 30, "Group authorization failed.")
    assert str(group).startswith("Group authorization failed: the client's principal needs READ on the group ")
    assert isinstance(refusal(ApiKey.OFFSET_COMMIT, 29, None), TopicAuthorizationFailed)
    assert "needs" not in str(refusal(ApiKey.OFFSET_COMMIT, 16, "not here"))


def test_refusals_of_older_brokers_are_explained_too() -> None:
    error = refusal(ApiKey.PRODUCE, 31, None)
    assert isinstance(error, ClusterAuthorizationFailed)
    assert "IDEMPOTENT_WRITE on the cluster" in str(error)
