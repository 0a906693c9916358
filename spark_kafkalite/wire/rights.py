"""The rights that each API needs: one table, for the broker that asks for them and for the texts of refusals.

A broker serves no API without an entry (``broker.requests.dispatch.handles``), its handlers ask for each item of a
request, and docs/protocol.md lists the entries. In a client a refusal names an API's topic, group or cluster, and not
what is missing: :func:`refusal` does, in the words of Kafka's ACLs.

Source: the table of operations in Kafka's documentation ("Authorization and ACLs"), KafkaApis.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_kafkalite.acls import IMPLIED_BY, OPERATIONS, Operation, ResourceType
from spark_kafkalite.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.error_codes import error_for

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
_O = Operation

# The errors of refusals, by what was refused.
REFUSALS: Final[dict[ResourceType, type[KafkaError]]] = {
    _TOPIC: TopicAuthorizationFailed,
    _GROUP: GroupAuthorizationFailed,
    _CLUSTER: ClusterAuthorizationFailed,
    _TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}


_TITLES: Final = {_TOPIC: "Topic", _GROUP: "Group", _CLUSTER: "Cluster", _TRANSACTIONAL_ID: "Transactional Id"}


class Need(NamedTuple):
    """One right that an API asks for. ``instead``: others, each of which is enough without it.

    ``when``: which requests need it, where not all do.
    """

    operation: Operation
    resource: ResourceType
    instead: tuple[tuple[Operation, ResourceType], ...] = ()
    when: str = ""

    def __str__(self) -> str:
        text = f"{self.operation.name} on the {_said(self.resource)}"
        implying = IMPLIED_BY.get(self.operation, frozenset()).intersection(OPERATIONS[self.resource])
        if implying:
            names = [each.name for each in sorted(implying)]
            text += f" ({' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))} include{_s(names)} it)"
        for operation, resource in self.instead:
            text += f", or {operation.name} on {'a' if resource is _TOPIC else 'the'} {_said(resource)}"
        return f"{text}; {self.when}" if self.when else text


def _said(resource: ResourceType) -> str:
    return resource.name.lower().replace("_", " ")


def _s(names: list[str]) -> str:
    return "s" if len(names) == 1 else ""


# Of an API that anybody may use.
NOTHING: Final[tuple[Need, ...]] = ()
_CREATE = Need(_O.CREATE, _TOPIC, instead=((_O.CREATE, _CLUSTER),))
_READ_GROUP = (Need(_O.READ, _GROUP),)
_DESCRIBE_TOPIC = Need(_O.DESCRIBE, _TOPIC)
_WRITE_TRANSACTION = Need(_O.WRITE, _TRANSACTIONAL_ID)
_DESCRIBE_CLUSTER = (Need(_O.DESCRIBE, _CLUSTER),)
_ALTER_CLUSTER = (Need(_O.ALTER, _CLUSTER),)
_BROKERS = (Need(_O.CLUSTER_ACTION, _CLUSTER),)

NEEDS: Final[dict[ApiKey, tuple[Need, ...]]] = {
    ApiKey.PRODUCE: (Need(_O.WRITE, _TOPIC), _WRITE_TRANSACTION._replace(when="in transactions")),
    ApiKey.FETCH: (Need(_O.READ, _TOPIC),),
    ApiKey.LIST_OFFSETS: (_DESCRIBE_TOPIC,),
    ApiKey.METADATA: (
        _DESCRIBE_TOPIC._replace(when="a topic that does not exist needs CREATE on the topic or the cluster"),
    ),
    ApiKey.OFFSET_COMMIT: (Need(_O.READ, _GROUP), Need(_O.READ, _TOPIC)),
    ApiKey.OFFSET_FETCH: (Need(_O.DESCRIBE, _GROUP), _DESCRIBE_TOPIC),
    ApiKey.FIND_COORDINATOR: (Need(_O.DESCRIBE, _GROUP), Need(_O.DESCRIBE, _TRANSACTIONAL_ID)),
    ApiKey.JOIN_GROUP: _READ_GROUP,
    ApiKey.HEARTBEAT: _READ_GROUP,
    ApiKey.LEAVE_GROUP: _READ_GROUP,
    ApiKey.SYNC_GROUP: _READ_GROUP,
    ApiKey.DESCRIBE_GROUPS: (Need(_O.DESCRIBE, _GROUP),),
    ApiKey.LIST_GROUPS: (Need(_O.DESCRIBE, _CLUSTER, when="without it, only groups with DESCRIBE are listed"),),
    ApiKey.SASL_HANDSHAKE: NOTHING,
    ApiKey.API_VERSIONS: NOTHING,
    ApiKey.CREATE_TOPICS: (_CREATE,),
    ApiKey.DELETE_TOPICS: (Need(_O.DELETE, _TOPIC),),
    ApiKey.DELETE_RECORDS: (Need(_O.DELETE, _TOPIC),),
    ApiKey.INIT_PRODUCER_ID: (
        Need(
            _O.IDEMPOTENT_WRITE,
            _CLUSTER,
            instead=((_O.WRITE, _TOPIC),),
            when="without either, set enable.idempotence=false",
        ),
        _WRITE_TRANSACTION,
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_DESCRIBE_TOPIC,),
    ApiKey.DESCRIBE_ACLS: _DESCRIBE_CLUSTER,
    ApiKey.CREATE_ACLS: _ALTER_CLUSTER,
    ApiKey.DELETE_ACLS: _ALTER_CLUSTER,
    ApiKey.DESCRIBE_CONFIGS: tuple(Need(_O.DESCRIBE_CONFIGS, each) for each in (_TOPIC, _GROUP, _CLUSTER)),
    ApiKey.ALTER_CONFIGS: tuple(Need(_O.ALTER_CONFIGS, each) for each in (_TOPIC, _GROUP, _CLUSTER)),
    ApiKey.DESCRIBE_LOG_DIRS: (
        *_DESCRIBE_CLUSTER,
        Need(_O.ALTER, _CLUSTER, when="to have logs compared, or what a registry is recovered from"),
    ),
    ApiKey.SASL_AUTHENTICATE: NOTHING,
    ApiKey.CREATE_PARTITIONS: (Need(_O.ALTER, _TOPIC),),
    ApiKey.DELETE_GROUPS: (Need(_O.DELETE, _GROUP),),
    ApiKey.ELECT_LEADERS: _ALTER_CLUSTER,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: tuple(Need(_O.ALTER_CONFIGS, each) for each in (_TOPIC, _GROUP, _CLUSTER)),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _ALTER_CLUSTER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _DESCRIBE_CLUSTER,
    ApiKey.OFFSET_DELETE: (Need(_O.DELETE, _GROUP), Need(_O.READ, _TOPIC)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (Need(_O.DESCRIBE_CONFIGS, _CLUSTER),),
    ApiKey.ALTER_CLIENT_QUOTAS: (Need(_O.ALTER_CONFIGS, _CLUSTER),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _DESCRIBE_CLUSTER,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _ALTER_CLUSTER,
    ApiKey.DESCRIBE_CLUSTER: NOTHING,
    ApiKey.LIST_CONFIG_RESOURCES: (Need(_O.DESCRIBE_CONFIGS, _CLUSTER),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_DESCRIBE_TOPIC,),
    ApiKey.COMPARE_REPLICAS: _BROKERS,
}

# Refusals of brokers that ask for other rights: Apache Kafka before 2.8 and 2.0.
_ELSEWHERE: Final = {
    ApiKey.PRODUCE: Need(_O.IDEMPOTENT_WRITE, _CLUSTER, instead=((_O.WRITE, _TOPIC),)),
    ApiKey.CREATE_TOPICS: Need(_O.CREATE, _CLUSTER),
    ApiKey.DESCRIBE_CLUSTER: Need(_O.DESCRIBE, _CLUSTER),
}
# By API and error code. The first need of a kind of resource counts.
_NEEDED: Final[dict[tuple[int, int], Need]] = {
    (key, REFUSALS[need.resource].code): need
    for key, needs in [*((key, (need,)) for key, need in _ELSEWHERE.items()), *NEEDS.items()]
    for need in reversed(needs)
}


def refused(resource: ResourceType) -> KafkaError:
    """Return the refusal of an operation on a resource, with Kafka's text."""
    return REFUSALS[resource](f"{_TITLES[resource]} authorization failed.")


def refusal(api_key: int, code: int, text: str | None) -> KafkaError:
    """Return the exception for an API's error code, as ``error_for``; its text names the missing right, if one is
    missing."""
    need = _NEEDED.get((api_key, code))
    if need is None:
        return error_for(code, text)
    return error_for(code, f"{(text or 'refused').rstrip('. ')}: the client's principal needs {need}")
