"""The values of a group: members, requests to join and to sync, and the effects that follow.

Values only. A *ticket* is whatever the caller wants to find its waiting request by; the group hands it back in the one
answer that the request gets. Effects are what a change of a group asks of its surroundings: answers to requests, and
writing the group's metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from spark_kafkalite.coordinator.groups.records import MemberMetadata
from spark_kafkalite.errors import InvalidRequest, InvalidSessionTimeout, KafkaError

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
NO_MEMBER_ID: Final = ""
NO_GENERATION: Final = -1

# Protocols (assignors) that a member may have; clients have two or three.
MOST_PROTOCOLS: Final = 100
# Characters of an instance id. It stands twice in each of the group's records, where a string ends at 32,767 bytes.
MOST_INSTANCE_ID_CHARS: Final = 1_000
# Names in one group's subscriptions that are looked at: reading this many takes about 20 ms.
_MOST_TOPICS: Final = 50_000
# What a member costs in memory beside its bytes, about.
_MEMBER_BYTES: Final = 1024

_INT16: Final = struct.Struct(">h")
_TOPIC_COUNT: Final = struct.Struct(">hi")


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The broker's settings of groups. ``max_bytes`` bounds what all members of one group take together."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 0
    max_bytes: int = 16 * 1024 * 1024

    def check_join(self, group_id: str, request: JoinRequest) -> None:
        """Raise what forbids any group to take this request: InvalidSessionTimeout, InvalidRequest."""
        if not self.min_session_timeout_ms <= request.session_timeout_ms <= self.max_session_timeout_ms:
            raise InvalidSessionTimeout(
                f"group {group_id}: a session timeout of {request.session_timeout_ms} ms; allowed are "
                f"{self.min_session_timeout_ms} (group.min.session.timeout.ms) to {self.max_session_timeout_ms} "
                "(group.max.session.timeout.ms)"
            )
        if len(request.protocols) > MOST_PROTOCOLS:
            raise InvalidRequest(f"group {group_id}: a member with more than {MOST_PROTOCOLS} protocols")
        if request.group_instance_id is not None and not is_instance_id(request.group_instance_id):
            raise InvalidRequest(
                f"group {group_id}: a group.instance.id of {len(request.group_instance_id)} characters; allowed "
                f"are 1 to {MOST_INSTANCE_ID_CHARS}"
            )


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A request to join. ``protocols`` are names with the client's metadata, the one it likes best first.

    ``needs_member_id``: the client can be given its id before it joins (version 4 and later). ``may_skip_assignment``:
    it understands that it leads without having to assign (version 9 and later).
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_member_id: bool = True
    may_skip_assignment: bool = False

    @property
    def size_bytes(self) -> int:
        """What the member takes in memory, about."""
        return _size_bytes(self)


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A request for the assignment; that of the leader brings ``assignments``. Protocols are None before version 5."""

    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Member:
    """One member. It has at most one of the two tickets. ``deadline_ms`` is None while it has one, because it sends no
    heartbeats then.

    ``is_new`` until its first join has been answered: such a member does not know its id yet, or not for sure.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    join_ticket: Hashable | None = None
    sync_ticket: Hashable | None = None
    deadline_ms: int | None = None

    @classmethod
    def of(cls, member_id: str, request: JoinRequest) -> Member:
        """Return the member that a request asks for."""
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
            is_new=True,
        )

    @property
    def size_bytes(self) -> int:
        """What the member takes in memory, about; its assignment apart, which the log bounds."""
        return _size_bytes(self)

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its place over a restart."""
        return self.group_instance_id is not None

    @property
    def protocol_names(self) -> frozenset[str]:
        """The protocols that the member has, each once, however often it named it."""
        return frozenset(name for name, _ in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty when it does not have the protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def as_request(self) -> JoinRequest:
        """Return the request by which the member would become what it is."""
        return JoinRequest(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            "",
            self.protocols,
        )

    def to_metadata(self, protocol: str | None, assignments: Mapping[str, bytes] | None) -> MemberMetadata:
        """Return what the log keeps of the member; its assignment is the given one if there are any."""
        return MemberMetadata(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            self.assignment if assignments is None else assignments.get(self.member_id, b""),
        )


def _size_bytes(member: JoinRequest | Member) -> int:
    strings = len(member.client_id) + len(member.client_host) + len(member.group_instance_id or "")
    return _MEMBER_BYTES + strings + sum(len(name) + len(metadata) for name, metadata in member.protocols)


# Effects ------------------------------------------------------------------------------------------------------------

# Answers are tuples, since a rebalance makes one for each of thousands of members in one go.


class JoinAnswer(NamedTuple):
    """The answer to a request to join. Only the leader's has ``members`` (id, instance id, metadata)."""

    ticket: Hashable
    error: KafkaError | None
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = NO_MEMBER_ID
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


class SyncAnswer(NamedTuple):
    """The answer to a request for the assignment."""

    ticket: Hashable
    error: KafkaError | None
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class StaticRestart:
    """What a static member was before it came back under a new id, to be restored if that cannot be written."""

    ticket: Hashable
    former_id: str
    former_leader: str
    former: JoinRequest
    may_skip_assignment: bool


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the group as it is now, with ``assignments`` in place of those that its members have, and report the
    outcome.

    ``assignments`` is None except after the leader's sync, ``restart`` except after the return of a static member.
    """

    generation: int
    assignments: Mapping[str, bytes] | None = None
    restart: StaticRestart | None = None


Effect = JoinAnswer | SyncAnswer | Persist


# Subscriptions ------------------------------------------------------------------------------------------------------


def is_instance_id(text: str) -> bool:
    """Return whether this may be a ``group.instance.id``: any text, as for Apache Kafka's brokers, if it is not too
    long.

    Java's client insists on characters of a topic's name; librdkafka does not, and has members named ``host:port``.
    """
    return 0 < len(text) <= MOST_INSTANCE_ID_CHARS


def topics_of(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics that consumers' subscriptions name; None when one cannot be read, or they are too many.

    Of a subscription only the beginning matters: version int16, count int32, and each topic as an int16 length and
    UTF-8. Source: ConsumerProtocolSubscription of Apache Kafka.
    """
    topics: set[str] = set()
    left = _MOST_TOPICS
    for subscription in set(subscriptions):
        try:
            version, count = _TOPIC_COUNT.unpack_from(subscription)
            left -= count
            if version < 0 or count < 0 or left < 0:
                return None
            position = _TOPIC_COUNT.size
            for _ in range(count):
                (size,) = _INT16.unpack_from(subscription, position)
                position += _INT16.size
                name = subscription[position : position + size]
                if size < 0 or len(name) != size:
                    return None
                topics.add(name.decode())
                position += size
        except (struct.error, UnicodeDecodeError):
            return None
    return frozenset(topics)
