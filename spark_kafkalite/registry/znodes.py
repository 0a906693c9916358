"""Paths and payloads of brokers, topics and settings in the registry; those of consumers are in :mod:`.consumer_nodes`,
those of reports about logs in :mod:`.report_nodes`, those of deletions in :mod:`.deleted_topics`.

Pure: text and bytes in, values out.

Paths and JSON forms are those of Apache Kafka with ZooKeeper (compact UTF-8 JSON), so that its tools can read them:

====================================  ==========  ======================================================================
path                                  kind        data
====================================  ==========  ======================================================================
/cluster/id                           persistent  ``{"version":"1","id":ID}``: 22 characters of URL-safe base64
/brokers/ids/N                        ephemeral   version 5: host, port, endpoints, jmx_port, timestamp, rack, ...;
                                                  our own: inner_wire_version, inter_broker_listener,
                                                  incarnation, steady_incarnations
/brokers/topics/T                     persistent  version 3: partitions (replicas of each), topic_id
/brokers/topics/T/partitions/P/state  persistent  version 1: leader, leader_epoch, controller_epoch, isr;
                                                  our own: isr_incarnations, elr
/controller                           ephemeral   version 2: brokerid, timestamp
/controller_epoch                     persistent  decimal number; the first controller has 1
/config/topics/T                      persistent  version 1: config
/config/brokers/N                     persistent  the same; ``<default>`` for N: of all brokers
/config/changes                       persistent  notices of changes, of tools and brokers (``entity_nodes``)
/admin/delete_topics/T                persistent  empty; a topic whose deletion has begun
/latest_producer_id_block             persistent  version 1: broker, block_start, block_end (inclusive, both as text)
/kafkalite/topics/ID                  persistent  empty; stands as long as the topic of this id (rule R14)
/kafkalite/deleted_topics             persistent  version 1: the topics deleted lately (``deleted_topics``)
/kafkalite/recovered                  persistent  version 1: which evidence of a lost registry is settled
                                                  (``recovery.evidence_node``)
/kafkalite/logs/N-I                   ephemeral   what broker N's logs have of partitions without a leader
                                                  (``report_nodes``)
/kafkalite/inter_broker_secret        persistent  the secret with which brokers authenticate to each other
====================================  ==========  ======================================================================

Brokers watch the config nodes of topics and brokers themselves, and leave no notices of their changes. Those of users,
of which there may be many, they follow through /config/changes as Kafka's brokers do (``entity_nodes``).

Readers take every version that Kafka has written. Fields that they do not know are kept, up to a bound, and written
again with the node: an older broker removes nothing that a newer one has written. (Brokers create their registrations
at each start, and never rewrite one.) A payload that cannot be read raises MalformedNode naming the path: another
program wrote it, so nothing is guessed. Every number is checked against its range on the wire (int32, int64): one
beyond would fail each answer that shows it.
Source: kafka.zk.ZkData of Apache Kafka 3.9.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, ControllerEpoch, Incarnation, LeaderEpoch
from spark_kafkalite.registry.accepted_damage import AcceptedDamage
from spark_kafkalite.registry.node_json import (
    MAX_INT32,
    MAX_INT64,
    MOST_FIELDS_BYTES,
    MOST_STATE_FIELDS_BYTES,
    NO_FIELDS,
    array,
    decode_object,
    encode_object,
    mapping,
    no_fields,
    number,
    reading,
    text,
    unknown_fields,
)
from spark_kafkalite.slices import Work, run_whole

CLUSTER_ID: Final = "/cluster/id"
BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
CONFIG_CHANGES: Final = "/config/changes"
DELETED_TOPICS: Final = "/admin/delete_topics"
TOPIC_GUARDS: Final = "/kafkalite/topics"
LOG_REPORTS: Final = "/kafkalite/logs"
INTER_BROKER_SECRET: Final = "/kafkalite/inter_broker_secret"
# What must exist before anything else is written or watched; parents come before children.
PERSISTENT_PATHS: Final = (
    "/cluster",
    "/brokers",
    BROKER_IDS,
    TOPICS,
    "/config",
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    "/admin",
    DELETED_TOPICS,
    "/kafkalite",
    TOPIC_GUARDS,
)

# The name of the entity that stands for all brokers, in the path and in ClusterState.broker_configs.
DEFAULT_ENTITY: Final = "<default>"
NO_LEADER: Final = BrokerId(-1)
NO_TOPIC_ID: Final = bytes(16)
# What brokers speak with each other: the requests, and how the follower's fetch and its proof are read. A broker speaks
# its own version and the one before. 2 has CompareReplicas; from 3 on a broker obeys the reassignments of others.
INNER_WIRE_VERSION: Final = 3
COMPARES_FROM_INNER_WIRE_VERSION: Final = 2
REASSIGNS_FROM_INNER_WIRE_VERSION: Final = 3
# Of a broker that does not say.
FIRST_INNER_WIRE_VERSION: Final = 1
# One below the type's last number: the next election, and the next controller, need one more.
MAX_EPOCH: Final = MAX_INT32 - 1
# More than the node of a topic can hold; one number from elsewhere would make partitions without end.
MAX_PARTITIONS: Final = 100_000
# Partitions of an assignment that are encoded or decoded in one piece.
_PARTITIONS_AT_ONCE: Final = 200
_MAX_VERSION_CHARS: Final = 64
# The fields of each node that are read, or written whatever they held; others are kept as they are.
_ASSIGNMENT_FIELDS: Final = frozenset(("version", "partitions", "adding_replicas", "removing_replicas", "topic_id"))
_STATE_FIELDS: Final = frozenset(
    # leader_recovery_state: Kafka's, of the election that the node is of; the next one has its own.
    (
        *("controller_epoch", "leader", "version", "leader_epoch", "isr", "isr_incarnations", "elr"),
        *("leader_recovery_state", "accepted_damage", "removed_replicas", "unclean_epoch"),
    )
)
_CONFIG_FIELDS: Final = frozenset(("version", "config"))
_UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{22}")


# Paths --------------------------------------------------------------------------------------------------------------


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_id_of(name: str) -> BrokerId | None:
    """Return the broker that a child of /brokers/ids stands for, None when it is no broker's."""
    with contextlib.suppress(ValueError):
        return BrokerId(number(name, 0, MAX_INT32))
    return None


def partition_of(name: str) -> int | None:
    """Return the partition that a node below a topic's stands for, None when it is no partition's."""
    with contextlib.suppress(ValueError):
        return number(name, 0, MAX_INT32)
    return None


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(entity: str) -> str:
    """Return the path of a broker's settings; ``entity`` is its number as text, or DEFAULT_ENTITY."""
    return f"{BROKER_CONFIGS}/{entity}"


def topic_guard_path(topic_id: bytes) -> str:
    """Return the node that exists as long as the topic of this id: every write of a partition's state checks it
    (R14)."""
    return f"{TOPIC_GUARDS}/{uuid_text(topic_id)}"


def deleted_topic_path(topic: str) -> str:
    return f"{DELETED_TOPICS}/{topic}"


# Ids ----------------------------------------------------------------------------------------------------------------


def new_incarnation() -> Incarnation:
    """Return a random number for one run of a broker's process."""
    return Incarnation(int.from_bytes(os.urandom(8), "big") % MAX_INT64 + 1)


def new_uuid() -> bytes:
    """Return a random id of 16 bytes whose text form does not begin with '-', which tools would take for an option."""
    while True:
        candidate = bytearray(os.urandom(16))
        # The version and variant bits of a random UUID (RFC 9562, version 4).
        candidate[6] = candidate[6] & 0x0F | 0x40
        candidate[8] = candidate[8] & 0x3F | 0x80
        if candidate[0] >> 2 != 62:
            return bytes(candidate)


def uuid_text(raw: bytes) -> str:
    """Return the 22 characters of URL-safe base64 of a 16-byte id."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of a text id. Raises ValueError when it is none."""
    if not _UUID_TEXT.fullmatch(text):
        raise ValueError(f"{text!r} is not an id of 22 characters of URL-safe base64")
    return base64.urlsafe_b64decode(text + "==")


# Payloads -----------------------------------------------------------------------------------------------------------


# Of a broker's rack, and of a host or an endpoint. Metadata, which all clients ask for, carries them in every answer,
# and a text of more than 32,767 bytes would make each of these fail.
MOST_RACK_CHARS: Final = 255
_MOST_ADDRESS_CHARS: Final = 1_000


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker's registration in /brokers/ids/N: where clients and brokers reach it, and whose logs it has.

    ``steady`` are earlier incarnations whose logs are proven to be whole in this one (rule R12); the node calls them
    steady_incarnations.
    """

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None = None
    timestamp_ms: int = 0
    endpoints: tuple[str, ...] = ()
    # The security protocol of each listener; one that is not here is called as its protocol.
    protocols: Mapping[str, str] = field(default_factory=dict, compare=False)
    # The name of the listener that other brokers connect to; empty: the first one.
    inner_listener: str = ""
    inner_wire_version: int = INNER_WIRE_VERSION
    incarnation: Incarnation = UNKNOWN_INCARNATION
    steady: tuple[Incarnation, ...] = ()
    # How long the session that holds this may be silent; 0 where the broker has not said so.
    session_timeout_ms: int = 0
    # The version of the broker's program; empty where the node does not name it.
    software_version: str = ""

    def addresses(self) -> dict[str, tuple[str, int]]:
        """Return host and port of each listener, by its name; those that cannot be read are left out."""
        found: dict[str, tuple[str, int]] = {}
        for endpoint in self.endpoints:
            with contextlib.suppress(ValueError):
                found[_listener_name(endpoint)] = _address_of(endpoint)
        return found

    def address(self, protocol: str) -> tuple[str, int] | None:
        """Return host and port of the first endpoint with a security protocol, None when there is none."""
        for endpoint in self.endpoints:
            name = _listener_name(endpoint)
            if self.protocols.get(name, name) == protocol:
                # One that cannot be read is as good as none.
                with contextlib.suppress(ValueError):
                    return _address_of(endpoint)
        # Brokers of old have one address and no endpoints.
        return (self.host, self.port) if protocol == "PLAINTEXT" and not self.endpoints else None

    @property
    def inner_protocol(self) -> str:
        """The security protocol of the listener that other brokers connect to."""
        name = self.inner_listener or (_listener_name(self.endpoints[0]) if self.endpoints else "PLAINTEXT")
        return self.protocols.get(name, name)

    def encode(self) -> bytes:
        endpoints = list(self.endpoints) or [f"PLAINTEXT://{_bracketed(self.host)}:{self.port}"]
        names = [_listener_name(endpoint) for endpoint in endpoints]
        protocols = {name: self.protocols.get(name, name) for name in names}
        # As Kafka has it: programs of old take host and port for those of a listener without TLS and SASL.
        open_host, open_port = self.address("PLAINTEXT") or (None, -1)
        fields: dict[str, Any] = {
            "version": 5,
            "host": open_host,
            "port": open_port,
            "jmx_port": -1,
            "timestamp": str(self.timestamp_ms),
            "endpoints": endpoints,
            "listener_security_protocol_map": protocols,
            "features": {},
        }
        if self.incarnation != UNKNOWN_INCARNATION:
            fields["inner_wire_version"] = self.inner_wire_version
            fields["inter_broker_listener"] = self.inner_listener or _listener_name(endpoints[0])
            # As text: many readers of JSON have no whole numbers beyond 2^53.
            fields["incarnation"] = str(self.incarnation)
            fields["steady_incarnations"] = [str(each) for each in self.steady]
            fields["session_timeout_ms"] = self.session_timeout_ms
        if self.software_version:
            fields["software_version"] = self.software_version
        if self.rack is not None:
            fields["rack"] = self.rack
        return encode_object(fields)

    @classmethod
    def decode(cls, broker_id: int, data: bytes) -> BrokerRegistration:
        path = broker_path(broker_id)
        fields = decode_object(path, data)
        with reading(path, data):
            endpoints = tuple(text(endpoint, _MOST_ADDRESS_CHARS) for endpoint in array(fields.get("endpoints", [])))
            host, port = fields.get("host"), number(fields.get("port", -1), -1, 65535)
            if not host and endpoints:
                # Kafka leaves host and port empty when no endpoint is PLAINTEXT.
                host, port = _address_of(endpoints[0])
            if not host:
                raise ValueError("neither a host nor an endpoint")
            rack = fields.get("rack")
            rack = None if rack is None else text(rack, MOST_RACK_CHARS)
            timestamp_ms = number(fields.get("timestamp", 0), -1, MAX_INT64)
            protocols = mapping(fields.get("listener_security_protocol_map", {}))
            return cls(
                BrokerId(broker_id),
                text(host, _MOST_ADDRESS_CHARS),
                port,
                rack,
                timestamp_ms,
                endpoints,
                protocols,
                text(fields.get("inter_broker_listener", "")),
                number(fields.get("inner_wire_version", FIRST_INNER_WIRE_VERSION), 0, MAX_INT32),
                _incarnation(fields.get("incarnation", UNKNOWN_INCARNATION)),
                tuple(_incarnation(each) for each in array(fields.get("steady_incarnations", []))),
                number(fields.get("session_timeout_ms", 0), 0, MAX_INT32),
                _software_version(fields.get("software_version")),
            )


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """/brokers/topics/T: the topic's id and the replicas of each partition, the preferred leader first.

    ``adding`` and ``removing``: of a partition that is being moved, the replicas that come and those that go.
    """

    topic_id: bytes
    partitions: Mapping[int, tuple[BrokerId, ...]]
    adding: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=no_fields)

    def encode(self) -> bytes:
        return run_whole(self.encode_work())

    def encode_work(self) -> Work[bytes]:
        """As :meth:`encode`, in slices: a node holds up to some eighty thousand partitions."""
        partitions = sorted(self.partitions.items())
        parts = []
        for first in range(0, len(partitions), _PARTITIONS_AT_ONCE):
            part = {str(number): list(replicas) for number, replicas in partitions[first : first + _PARTITIONS_AT_ONCE]}
            parts.append(encode_object(part)[1:-1])
            yield None
        rest = encode_object(
            {
                "adding_replicas": {str(number): list(replicas) for number, replicas in self.adding.items()},
                "removing_replicas": {str(number): list(replicas) for number, replicas in self.removing.items()},
                "topic_id": uuid_text(self.topic_id),
                **self.unknown,
            }
        )
        return b'{"version":3,"partitions":{' + b",".join(parts) + b"}," + rest[1:]

    @classmethod
    def decode(cls, topic: str, data: bytes) -> TopicAssignment:
        return run_whole(cls.decode_work(topic, data))

    @classmethod
    def decode_work(cls, topic: str, data: bytes) -> Work[TopicAssignment]:
        """As :meth:`decode`, in slices. Raises MalformedNode."""
        path = topic_path(topic)
        fields = decode_object(path, data)
        with reading(path, data):
            topic_id = uuid_bytes(text(fields["topic_id"])) if fields.get("topic_id") else NO_TOPIC_ID
            partitions = {}
            for index, (name, replicas) in enumerate(mapping(fields["partitions"]).items()):
                partitions[number(name, 0, MAX_PARTITIONS - 1)] = _broker_ids(replicas)
                if index % _PARTITIONS_AT_ONCE == 0:
                    yield None
            if not partitions or not all(partitions.values()):
                raise ValueError("a topic without partitions, or a partition without replicas")
            return cls(
                topic_id,
                dict(sorted(partitions.items())),
                _moves(fields.get("adding_replicas", {})),
                _moves(fields.get("removing_replicas", {})),
                unknown_fields(path, fields, _ASSIGNMENT_FIELDS, MOST_FIELDS_BYTES),
            )


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """/brokers/topics/T/partitions/P/state. ``leader`` is -1 when no replica can lead.

    ``incarnations`` names the incarnation of each member of the ISR (rule R11; isr_incarnations in the node), and
    ``eligible`` the replicas, with theirs, that have left it while it was smaller than min.insync.replicas (rule R16,
    KIP-966; elr in the node). A member that is in neither has an unknown one. ``accepted_damage`` is what an operator
    has accepted that the leader's log lacks. ``removed`` are brokers that a reassignment has taken the partition from
    (rule V5; removed_replicas in the node): they are no replicas, whatever an older topic node lists.
    ``unclean_epoch`` is the leader epoch of the last election that may have given up committed records, -1 for none
    (rule R24).
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    controller_epoch: ControllerEpoch
    incarnations: Mapping[BrokerId, Incarnation] = field(default_factory=dict)
    eligible: Mapping[BrokerId, Incarnation] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=no_fields)
    accepted_damage: AcceptedDamage | None = None
    removed: tuple[BrokerId, ...] = ()
    unclean_epoch: int = -1

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            "leader_epoch": self.leader_epoch,
            "isr": list(self.isr),
        }
        for name, incarnations in (("isr_incarnations", self.incarnations), ("elr", self.eligible)):
            if incarnations:
                fields[name] = {str(broker): str(incarnation) for broker, incarnation in incarnations.items()}
        if self.accepted_damage is not None:
            fields["accepted_damage"] = self.accepted_damage.fields()
        if self.removed:
            fields["removed_replicas"] = list(self.removed)
        if self.unclean_epoch >= 0:
            fields["unclean_epoch"] = self.unclean_epoch
        fields.update(self.unknown)
        return encode_object(fields)

    @classmethod
    def decode(cls, topic: str, partition: int, data: bytes) -> LeaderAndIsr:
        path = state_path(topic, partition)
        fields = decode_object(path, data)
        with reading(path, data):
            return cls(
                BrokerId(number(fields["leader"], NO_LEADER, MAX_INT32)),
                LeaderEpoch(number(fields["leader_epoch"], 0, MAX_EPOCH)),
                _broker_ids(fields["isr"]),
                ControllerEpoch(number(fields["controller_epoch"], -1, MAX_INT32)),
                _incarnations(fields.get("isr_incarnations", {})),
                _incarnations(fields.get("elr", {})),
                unknown_fields(path, fields, _STATE_FIELDS, MOST_STATE_FIELDS_BYTES),
                AcceptedDamage.read(fields.get("accepted_damage")),
                _broker_ids(fields.get("removed_replicas", [])),
                number(fields.get("unclean_epoch", -1), -1, MAX_EPOCH),
            )


def encode_cluster_id(cluster_id: str) -> bytes:
    return encode_object({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    fields = decode_object(CLUSTER_ID, data)
    with reading(CLUSTER_ID, data):
        cluster_id = text(fields["id"])
        uuid_bytes(cluster_id)
        return cluster_id


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return encode_object(
        {"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1}
    )


def decode_controller(data: bytes) -> BrokerId:
    fields = decode_object(CONTROLLER, data)
    with reading(CONTROLLER, data):
        return BrokerId(number(fields["brokerid"], 0, MAX_INT32))


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode("ascii")


def decode_controller_epoch(data: bytes) -> ControllerEpoch:
    with reading(CONTROLLER_EPOCH, data):
        return ControllerEpoch(number(data.decode("ascii"), 0, MAX_EPOCH))


def encode_config(config: Mapping[str, str], unknown: Mapping[str, Any] = NO_FIELDS) -> bytes:
    return encode_object({"version": 1, "config": dict(config), **unknown})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    return decode_config_node(path, data)[0]


def decode_config_node(path: str, data: bytes) -> tuple[dict[str, str], Mapping[str, Any]]:
    """Return the settings in a node, and its other fields, which are not known. Raises MalformedNode."""
    fields = decode_object(path, data)
    with reading(path, data):
        config = {name: text(value) for name, value in mapping(fields["config"]).items()}
        return config, unknown_fields(path, fields, _CONFIG_FIELDS, MOST_FIELDS_BYTES)


# What fields hold ----------------------------------------------------------------------------------------------------


def _broker_ids(value: Any) -> tuple[BrokerId, ...]:
    found = tuple([BrokerId(number(each, 0, MAX_INT32)) for each in array(value)])
    if len(found) > 1 and len(set(found)) != len(found):
        raise ValueError("a broker is named twice")
    return found


def _moves(value: Any) -> dict[int, tuple[BrokerId, ...]]:
    return {
        number(name, 0, MAX_PARTITIONS - 1): _broker_ids(replicas)
        for name, replicas in mapping({} if value is None else value).items()
    }


def _incarnation(value: Any) -> Incarnation:
    return Incarnation(number(value, UNKNOWN_INCARNATION, MAX_INT64))


def _software_version(value: Any) -> str:
    """Return the version that a registration names: text for people, which no broker may become unreadable for."""
    return value[:_MAX_VERSION_CHARS] if isinstance(value, str) else ""


def _incarnations(value: Any) -> dict[BrokerId, Incarnation]:
    return {
        BrokerId(number(broker, 0, MAX_INT32)): _incarnation(incarnation)
        for broker, incarnation in mapping(value).items()
    }


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _listener_name(endpoint: str) -> str:
    return endpoint.partition("://")[0]


def _address_of(endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint, "" and -1 where they are missing. Raises ValueError."""
    from urllib.parse import urlsplit  # a broker of ours never needs it

    # Names such as SASL_SSL are no schemes of URLs.
    parts = urlsplit("//" + endpoint.partition("://")[2])
    return parts.hostname or "", parts.port or -1
