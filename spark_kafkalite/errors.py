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

    def __init_subclass__(cls, *, code: int | None = None) -> None:
        """Give a class its number; without one it has that of its base."""
        super().__init_subclass__()
        if code is not None:
            cls.code = code

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


class UnknownServerError(KafkaError, code=-1):
    """The broker met an error it has no name for."""


class OffsetOutOfRange(KafkaError, code=1):
    """The offset lies before the log start offset or beyond the log end offset."""


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


class CorruptMessage(RetriableError, code=2):
    """A record batch fails its CRC, or its lengths contradict each other."""


class UnknownTopicOrPartition(StaleMetadataError, code=3):
    """This broker does not host the topic or partition."""


class LeaderNotAvailable(StaleMetadataError, code=5):
    """The partition has no leader at present."""


class NotLeaderOrFollower(StaleMetadataError, code=6):
    """This broker is not the partition's leader."""


class RequestTimedOut(RetriableError, code=7):
    """The request was not done within its own time limit; what it wrote stays written."""


class BrokerNotAvailable(KafkaError, code=8):
    """The broker is not available."""


class MessageTooLarge(KafkaError, code=10):
    """A record batch is larger than the topic's ``max.message.bytes``.

    ``row`` is that of a record which ``send_batch()`` was given and the producer itself refuses; -1 for others.
    """

    def __init__(self, *arguments: object, row: int = -1) -> None:
        super().__init__(*arguments)
        self.row = row


class OffsetMetadataTooLarge(KafkaError, code=12):
    """The text stored with an offset is longer than ``offset.metadata.max.bytes``."""


class CoordinatorLoadInProgress(RetriableError, code=14):
    """The coordinator is still reading its state."""


class CoordinatorNotAvailable(StaleMetadataError, code=15):
    """There is no coordinator for this group or transactional id at present."""


class NotCoordinator(StaleMetadataError, code=16):
    """Another broker coordinates this group or transactional id."""


class InvalidTopic(KafkaError, code=17):
    """The topic's name is not legal."""


class RecordListTooLarge(KafkaError, code=18):
    """A record batch is larger than ``segment.bytes``."""


class NotEnoughReplicas(RetriableError, code=19):
    """Fewer replicas are in sync than ``min.insync.replicas``; nothing was written."""


class NotEnoughReplicasAfterAppend(RetriableError, code=20):
    """Fewer replicas than ``min.insync.replicas`` were in sync once the records were written."""


class InvalidRequiredAcks(KafkaError, code=21):
    """``acks`` is not one of -1 (all), 0 and 1."""


class IllegalGeneration(KafkaError, code=22):
    """The group has moved on to another generation."""


class InconsistentGroupProtocol(KafkaError, code=23):
    """The member's protocol type, or all of its protocols, differ from those of its group."""


class InvalidGroupId(KafkaError, code=24):
    """The group id is not legal."""


class UnknownMemberId(KafkaError, code=25):
    """The group does not know this member."""


class InvalidSessionTimeout(KafkaError, code=26):
    """The session timeout lies outside what the broker allows."""


class RebalanceInProgress(KafkaError, code=27):
    """The group is rebalancing; join again."""


class InvalidCommitOffsetSize(KafkaError, code=28):
    """The committed offsets, or the group, do not fit into one record."""


class TopicAuthorizationFailed(KafkaError, code=29):
    """This principal may not use the topic."""


class GroupAuthorizationFailed(KafkaError, code=30):
    """This principal may not use the group."""


class ClusterAuthorizationFailed(KafkaError, code=31):
    """This principal may not use the cluster in this way."""


class InvalidTimestamp(KafkaError, code=32):
    """A record's timestamp lies outside what the topic allows."""


class UnsupportedSaslMechanism(KafkaError, code=33):
    """The broker does not offer this SASL mechanism."""


class IllegalSaslState(KafkaError, code=34):
    """The request is not possible at this point of the authentication, or the listener does not authenticate."""


class UnsupportedVersion(KafkaError, code=35):
    """The broker does not serve this version of the request."""


class TopicAlreadyExists(KafkaError, code=36):
    """A topic of this name exists."""


class InvalidPartitions(KafkaError, code=37):
    """The number of partitions is not legal."""


class InvalidReplicationFactor(KafkaError, code=38):
    """The replication factor is below one or above the number of live brokers."""


class InvalidReplicaAssignment(KafkaError, code=39):
    """The replica assignment names unknown brokers, repeats them, or is uneven."""


class InvalidConfig(KafkaError, code=40):
    """A topic or broker setting is unknown or has a bad value."""


class NotController(StaleMetadataError, code=41):
    """This broker is not the controller."""


class InvalidRequest(KafkaError, code=42):
    """The request contradicts itself or the protocol."""


class PolicyViolation(KafkaError, code=44):
    """The request is against a policy of this cluster."""


class OutOfOrderSequenceNumber(KafkaError, code=45):
    """An idempotent producer's batch does not follow its last one."""


class DuplicateSequenceNumber(KafkaError, code=46):
    """An idempotent producer sent a batch that is already in the log."""


class InvalidProducerEpoch(KafkaError, code=47):
    """A newer incarnation of this producer exists."""


class TransactionCoordinatorFenced(KafkaError, code=52):
    """Another broker coordinates this transaction since."""


class TransactionalIdAuthorizationFailed(KafkaError, code=53):
    """This principal may not use the transactional id."""


class SecurityDisabled(KafkaError, code=54):
    """The broker has no authorizer, so that there are no ACLs."""


class KafkaStorageError(StaleMetadataError, code=56):
    """The disk under this partition has failed."""


class SaslAuthenticationFailed(KafkaError, code=58):
    """The credentials were refused, or the broker could not prove that it knows them."""


class UnknownProducerId(KafkaError, code=59):
    """The log has no state for this producer any more."""

    # Told with the error, so that a client sees whether its records may have been deleted; -1 when not known.
    log_start_offset = -1


class ReassignmentInProgress(KafkaError, code=60):
    """The topic's partitions are being moved to other brokers."""


class NonEmptyGroup(KafkaError, code=68):
    """The group still has members."""


class GroupIdNotFound(KafkaError, code=69):
    """There is no such group."""


class FetchSessionIdNotFound(RetriableError, code=70):
    """The broker does not know the fetch session."""


class InvalidFetchSessionEpoch(RetriableError, code=71):
    """The fetch is not the next one of its session."""


class ListenerNotFound(StaleMetadataError, code=72):
    """There is no listener on the leader that matches the one which the client has used."""


class TopicDeletionDisabled(KafkaError, code=73):
    """``delete.topic.enable`` is false on this broker."""


class FencedLeaderEpoch(StaleMetadataError, code=74):
    """The request carries an older leader epoch than the broker's."""


class UnknownLeaderEpoch(StaleMetadataError, code=75):
    """The request carries a newer leader epoch than the broker's."""


class UnsupportedCompressionType(KafkaError, code=76):
    """The codec is not allowed in this version of the request."""


class OffsetNotAvailable(RetriableError, code=78):
    """The leader does not know the offset yet."""


class MemberIdRequired(KafkaError, code=79):
    """The group has given the member an id; join again with it."""


class PreferredLeaderNotAvailable(StaleMetadataError, code=80):
    """The partition's first replica is not live, not in sync, or has not proven that its log is whole."""


class GroupMaxSizeReached(KafkaError, code=81):
    """The group has ``group.max.size`` members already."""


class FencedInstanceId(KafkaError, code=82):
    """Another member uses this ``group.instance.id``."""


class EligibleLeadersNotAvailable(StaleMetadataError, code=83):
    """No replica that may lead the partition is available."""


class ElectionNotNeeded(StaleMetadataError, code=84):
    """The partition has the right leader already."""


class NoReassignmentInProgress(KafkaError, code=85):
    """The partition is not being moved."""


class GroupSubscribedToTopic(KafkaError, code=86):
    """The group still reads the topic."""


class InvalidRecord(KafkaError, code=87):
    """A record batch breaks a rule of the record format or of its topic."""


class ResourceNotFound(KafkaError, code=91):
    """There is no such resource."""


class DuplicateResource(KafkaError, code=92):
    """A request names one resource twice."""


class UnacceptableCredential(KafkaError, code=93):
    """A credential does not meet the broker's requirements."""


class UnknownTopicId(StaleMetadataError, code=100):
    """The broker hosts no topic of this id."""


class InconsistentTopicId(StaleMetadataError, code=103):
    """The topic of this name has another id here: it has been made again."""


class InconsistentClusterId(KafkaError, code=104):
    """The broker or its data belongs to another cluster."""


class FetchSessionTopicIdError(RetriableError, code=106):
    """A fetch session has begun with names of topics and goes on with their ids, or the other way round."""
