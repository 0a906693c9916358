"""The exception tree: what went wrong, the protocol's number for it, and whether another try can help.

Two branches. :class:`KafkaError` and its subclasses have a wire code: a broker answers with them, a client raises them
(``wire.error_codes`` maps codes to classes and knows the rarer codes that our code never names). The others are local:
bad settings, a broken frame, a full buffer, a broker that cannot be reached.

``retriable`` means that the same request may succeed later; ``refresh_metadata`` means that the client's metadata is
stale. Both follow ``org.apache.kafka.common.protocol.Errors`` and its exception classes. Per-partition
outcomes travel as codes inside responses; exceptions are for whole requests, callers of clients, and bugs. A message
names the thing, the value, the bound and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from spark_kafkalite.printable import printable_lines

if TYPE_CHECKING:
    from spark_kafkalite.model import TopicPartition

# A string of the protocol has at most 32767 bytes, and a character up to four.
_LONGEST_TEXT: Final = 4000


class KafkaliteError(Exception):
    """Base of every error that this package raises on purpose."""

    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False

    def __str__(self) -> str:
        """Return the text; names and values in it, which another party chose, show no control characters."""
        return printable_lines(super().__str__())


# Local errors -------------------------------------------------------------------------------------------------------


class ConfigError(KafkaliteError):
    """A setting is unknown, has a bad value, or contradicts another.

    ``kafka_text`` is the same in the words of Kafka's brokers. A broker's answers use it: people search for these
    words.
    """

    def __init__(self, text: str = "", kafka_text: str | None = None) -> None:
        super().__init__(text)
        self.kafka_text = text if kafka_text is None else kafka_text


class FrameError(KafkaliteError):
    """A frame or message does not follow the protocol; the connection it came from must be closed."""


class BufferExhausted(KafkaliteError):
    """The producer's ``buffer.memory`` stayed full for ``max.block.ms``."""


class DeliveryTimeout(KafkaliteError):
    """A record was not acknowledged within ``delivery.timeout.ms``; it may or may not be in the log."""


class UndeliveredRecords(KafkaliteError):
    """Records that a producer was given failed, and neither ``result()`` nor a callback reported it.

    ``record_count`` of them; ``__cause__`` is the first reason.
    """

    record_count = 0


class ClosedError(KafkaliteError):
    """The client, log or broker has been closed."""


class BrokerUnreachable(KafkaliteError):
    """No connection to the broker, or it broke; the message names the addresses tried and why each failed."""

    retriable = True
    refresh_metadata = True


class AdvertisedUnreachable(BrokerUnreachable):
    """The cluster has answered, but the address that it advertises for a broker cannot be reached.

    ``is_first`` when the client has never reached any address that the cluster advertises. The cause is then far more
    often a wrong ``advertised.listeners`` than an unavailable broker.
    """

    def __init__(self, text: str = "", *, is_first: bool = False) -> None:
        super().__init__(text)
        self.is_first = is_first


class NoMemoryForAnswer(BrokerUnreachable):
    """There was no memory for an answer of another broker; ``beginning`` is the first part of its body."""

    def __init__(self, text: str, size_bytes: int = 0, beginning: bytes = b"") -> None:
        super().__init__(text)
        self.size_bytes = size_bytes
        self.beginning = beginning


class InnerWireUnsupported(BrokerUnreachable):
    """Another broker of the cluster has a version of the inner wire that this one does not speak; it is logged."""


class HandshakeFailed(BrokerUnreachable):
    """Something listens there and takes the connection, but does not talk as a broker on such a listener does.

    It may be a broker that starts or stops; a client that has never reached its cluster soon takes it for a wrong
    address, or a wrong ``security.protocol``, and gives up with NoBrokerThere. ``is_certain`` when its answer shows
    that it is no such broker.
    """

    is_certain = False


class NoBrokerThere(KafkaliteError):
    """A client that has never reached its cluster gives up: what listens at the addresses is no broker, or a listener
    for another ``security.protocol``.
    """


class SslHandshakeFailed(KafkaliteError):
    """The TLS handshake failed: the client or the broker refused a certificate, or they share no version or cipher.

    Source: org.apache.kafka.common.errors.SslAuthenticationException.
    """


class ConsumerTimeout(KafkaliteError):
    """Nothing came on a message stream for ``consumer.timeout.ms``; the stream can be read on."""

    retriable = True


class RebalanceFailed(KafkaliteError):
    """A registry consumer could not get hold of its partitions within its retries."""

    retriable = True


class SerializationError(KafkaliteError):
    """A key, value or header is not bytes, or not what the record format can hold."""


class RegistryError(KafkaliteError):
    """The registry refused or could not do an operation; the subclasses in ``registry.store`` are the reasons."""


# Errors with a wire code --------------------------------------------------------------------------------------------


class KafkaError(KafkaliteError):
    """An outcome that the protocol numbers. ``code`` is the number on the wire."""

    code: ClassVar[int] = -1

    def __str__(self) -> str:
        """Return the text, cut where names and values in it, which a client sent, make it too long for an answer."""
        text = super().__str__()
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}... ({len(text)} characters)"


class RetriableError(KafkaError):
    """The same request may succeed later."""

    retriable = True


class StaleMetadataError(RetriableError):
    """The request went to the wrong broker, or the cluster has changed: refresh the metadata, then try again."""

    refresh_metadata = True


class UnknownServerError(KafkaError):
    """The broker met an error it has no name for."""

    code = -1


class OffsetOutOfRange(KafkaError):
    """The offset lies before the log start offset or beyond the log end offset."""

    code = 1


class LogTruncated(OffsetOutOfRange):
    """Records that were read are not in the log any more: it has other ones, or none, from ``divergent_offset`` on.

    ``offset`` is what was to be read next, ``leader_epoch`` the epoch of the record before ``divergent_offset``.
    """

    def __init__(self, topic_partition: TopicPartition, offset: int, divergent_offset: int, leader_epoch: int) -> None:
        super().__init__(
            f"{topic_partition}: the log was truncated to offset {divergent_offset} after records up to offset "
            f"{offset} had been read; seek to {divergent_offset} to read what took their place, or to {offset} to go on"
        )
        self.topic_partition = topic_partition
        self.offset = offset
        self.divergent_offset = divergent_offset
        self.leader_epoch = leader_epoch

    def __reduce__(self) -> tuple[type[LogTruncated], tuple[TopicPartition, int, int, int]]:
        return type(self), (self.topic_partition, self.offset, self.divergent_offset, self.leader_epoch)


class CorruptMessage(RetriableError):
    """A record batch fails its CRC, or its lengths contradict each other."""

    code = 2


class UnknownTopicOrPartition(StaleMetadataError):
    """This broker does not host the topic or partition."""

    code = 3


class LeaderNotAvailable(StaleMetadataError):
    """The partition has no leader at present."""

    code = 5


class NotLeaderOrFollower(StaleMetadataError):
    """This broker is not the partition's leader."""

    code = 6


class RequestTimedOut(RetriableError):
    """The request was not done within its own time limit; what it wrote stays written."""

    code = 7


class BrokerNotAvailable(KafkaError):
    """The broker is not available."""

    code = 8


class MessageTooLarge(KafkaError):
    """A record batch is larger than the topic's ``max.message.bytes``.

    ``row`` is that of a record which ``send_batch()`` was given and the producer itself refuses; -1 for others.
    """

    code = 10

    def __init__(self, *arguments: object, row: int = -1) -> None:
        super().__init__(*arguments)
        self.row = row


class OffsetMetadataTooLarge(KafkaError):
    """The text stored with an offset is longer than ``offset.metadata.max.bytes``."""

    code = 12


class CoordinatorLoadInProgress(RetriableError):
    """The coordinator is still reading its state."""

    code = 14


class CoordinatorNotAvailable(StaleMetadataError):
    """There is no coordinator for this group or transactional id at present."""

    code = 15


class NotCoordinator(StaleMetadataError):
    """Another broker coordinates this group or transactional id."""

    code = 16


class InvalidTopic(KafkaError):
    """The topic's name is not legal."""

    code = 17


class RecordListTooLarge(KafkaError):
    """A record batch is larger than ``segment.bytes``."""

    code = 18


class NotEnoughReplicas(RetriableError):
    """Fewer replicas are in sync than ``min.insync.replicas``; nothing was written."""

    code = 19


class NotEnoughReplicasAfterAppend(RetriableError):
    """Fewer replicas than ``min.insync.replicas`` were in sync once the records were written."""

    code = 20


class InvalidRequiredAcks(KafkaError):
    """``acks`` is not one of -1 (all), 0 and 1."""

    code = 21


class IllegalGeneration(KafkaError):
    """The group has moved on to another generation."""

    code = 22


class InconsistentGroupProtocol(KafkaError):
    """The member's protocol type, or all of its protocols, differ from those of its group."""

    code = 23


class InvalidGroupId(KafkaError):
    """The group id is not legal."""

    code = 24


class UnknownMemberId(KafkaError):
    """The group does not know this member."""

    code = 25


class InvalidSessionTimeout(KafkaError):
    """The session timeout lies outside what the broker allows."""

    code = 26


class RebalanceInProgress(KafkaError):
    """The group is rebalancing; join again."""

    code = 27


class InvalidCommitOffsetSize(KafkaError):
    """The committed offsets, or the group, do not fit into one record."""

    code = 28


class TopicAuthorizationFailed(KafkaError):
    """This principal may not use the topic."""

    code = 29


class GroupAuthorizationFailed(KafkaError):
    """This principal may not use the group."""

    code = 30


class ClusterAuthorizationFailed(KafkaError):
    """This principal may not use the cluster in this way."""

    code = 31


class InvalidTimestamp(KafkaError):
    """A record's timestamp lies outside what the topic allows."""

    code = 32


class UnsupportedVersion(KafkaError):
    """The broker does not serve this version of the request."""

    code = 35


class TopicAlreadyExists(KafkaError):
    """A topic of this name exists."""

    code = 36


class InvalidPartitions(KafkaError):
    """The number of partitions is not legal."""

    code = 37


class InvalidReplicationFactor(KafkaError):
    """The replication factor is below one or above the number of live brokers."""

    code = 38


class InvalidReplicaAssignment(KafkaError):
    """The replica assignment names unknown brokers, repeats them, or is uneven."""

    code = 39


class InvalidConfig(KafkaError):
    """A topic or broker setting is unknown or has a bad value."""

    code = 40


class NotController(StaleMetadataError):
    """This broker is not the controller."""

    code = 41


class InvalidRequest(KafkaError):
    """The request contradicts itself or the protocol."""

    code = 42


class PolicyViolation(KafkaError):
    """The request is against a policy of this cluster."""

    code = 44


class OutOfOrderSequenceNumber(KafkaError):
    """An idempotent producer's batch does not follow its last one."""

    code = 45


class DuplicateSequenceNumber(KafkaError):
    """An idempotent producer sent a batch that is already in the log."""

    code = 46


class InvalidProducerEpoch(KafkaError):
    """A newer incarnation of this producer exists."""

    code = 47


class TransactionCoordinatorFenced(KafkaError):
    """Another broker coordinates this transaction since."""

    code = 52


class UnsupportedSaslMechanism(KafkaError):
    """The broker does not offer this SASL mechanism."""

    code = 33


class IllegalSaslState(KafkaError):
    """The request is not possible at this point of the authentication, or the listener does not authenticate."""

    code = 34


class SecurityDisabled(KafkaError):
    """The broker has no authorizer, so that there are no ACLs."""

    code = 54


class TransactionalIdAuthorizationFailed(KafkaError):
    """This principal may not use the transactional id."""

    code = 53


class KafkaStorageError(StaleMetadataError):
    """The disk under this partition has failed."""

    code = 56


class SaslAuthenticationFailed(KafkaError):
    """The credentials were refused, or the broker could not prove that it knows them."""

    code = 58


class UnknownProducerId(KafkaError):
    """The log has no state for this producer any more."""

    code = 59
    # Told with the error, so that a client sees whether its records may have been deleted; -1 when not known.
    log_start_offset = -1


class NonEmptyGroup(KafkaError):
    """The group still has members."""

    code = 68


class GroupIdNotFound(KafkaError):
    """There is no such group."""

    code = 69


class FetchSessionIdNotFound(RetriableError):
    """The broker does not know the fetch session."""

    code = 70


class InvalidFetchSessionEpoch(RetriableError):
    """The fetch is not the next one of its session."""

    code = 71


class ListenerNotFound(StaleMetadataError):
    """There is no listener on the leader that matches the one which the client has used."""

    code = 72


class TopicDeletionDisabled(KafkaError):
    """``delete.topic.enable`` is false on this broker."""

    code = 73


class FencedLeaderEpoch(StaleMetadataError):
    """The request carries an older leader epoch than the broker's."""

    code = 74


class UnknownLeaderEpoch(StaleMetadataError):
    """The request carries a newer leader epoch than the broker's."""

    code = 75


class UnsupportedCompressionType(KafkaError):
    """The codec is not allowed in this version of the request."""

    code = 76


class OffsetNotAvailable(RetriableError):
    """The leader does not know the offset yet."""

    code = 78


class MemberIdRequired(KafkaError):
    """The group has given the member an id; join again with it."""

    code = 79


class PreferredLeaderNotAvailable(StaleMetadataError):
    """The partition's first replica is not live, not in sync, or has not proven that its log is whole."""

    code = 80


class GroupMaxSizeReached(KafkaError):
    """The group has ``group.max.size`` members already."""

    code = 81


class FencedInstanceId(KafkaError):
    """Another member uses this ``group.instance.id``."""

    code = 82


class EligibleLeadersNotAvailable(StaleMetadataError):
    """No replica that may lead the partition is available."""

    code = 83


class ElectionNotNeeded(StaleMetadataError):
    """The partition has the right leader already."""

    code = 84


class ReassignmentInProgress(KafkaError):
    """The topic's partitions are being moved to other brokers."""

    code = 60


class NoReassignmentInProgress(KafkaError):
    """The partition is not being moved."""

    code = 85


class GroupSubscribedToTopic(KafkaError):
    """The group still reads the topic."""

    code = 86


class InvalidRecord(KafkaError):
    """A record batch breaks a rule of the record format or of its topic."""

    code = 87


class ResourceNotFound(KafkaError):
    """There is no such resource."""

    code = 91


class DuplicateResource(KafkaError):
    """A request names one resource twice."""

    code = 92


class UnacceptableCredential(KafkaError):
    """A credential does not meet the broker's requirements."""

    code = 93


class UnknownTopicId(StaleMetadataError):
    """The broker hosts no topic of this id."""

    code = 100


class InconsistentTopicId(StaleMetadataError):
    """The topic of this name has another id here: it has been made again."""

    code = 103


class InconsistentClusterId(KafkaError):
    """The broker or its data belongs to another cluster."""

    code = 104


class FetchSessionTopicIdError(RetriableError):
    """A fetch session has begun with names of topics and goes on with their ids, or the other way round."""

    code = 106
