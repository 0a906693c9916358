"""What this broker's leaders and followers share, whichever partition they are of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol

from spark_kafkalite.broker.metrics.counters import LogMeters
from spark_kafkalite.broker.quotas.allowance import Windows
from spark_kafkalite.broker.quotas.replication_throttle import ReplicationThrottle
from spark_kafkalite.broker.replication.rules.in_sync import LiveBrokers
from spark_kafkalite.broker.replication.rules.rereads import Rereads
from spark_kafkalite.broker.waiting.purgatory import Purgatory
from spark_kafkalite.clock import Clock
from spark_kafkalite.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafkalite.net.io_threads import IoThreads


class IsrLooks(Protocol):
    """Has a leader check for a change of its ISR, and writes the change; see ``isr_changes``."""

    def look(self, leader: Any, in_s: float = 0.0) -> None:
        """Have ``Leader.due_change`` asked in so many seconds, or earlier."""


class _NoIsrLooks:
    """Before replication has begun, ISRs do not change."""

    def look(self, leader: Any, in_s: float = 0.0) -> None: ...


def ignored(*_: object) -> None:
    """Take the place of a listener that there is not."""


def _never(_: TopicPartition) -> bool:
    return False


def _no_epoch(_: TopicPartition) -> int:
    return NO_LEADER_EPOCH


@dataclass
class ReplicaServices:
    """See the module's text. Made once by the broker. Replication puts in what it does, when it begins."""

    broker_id: int
    clock: Clock
    io: IoThreads
    purgatory: Purgatory
    max_decompressed_bytes: int
    # None where nothing is counted.
    meters: LogMeters | None = None
    throttle_windows: InitVar[Windows | None] = None
    # replica.fetch.backoff.ms
    follower_backoff_s: float = 1.0
    high_watermark_requires_min_insync: bool = True
    # The registered brokers, and who looks after the ISRs of what this one leads.
    live_brokers: LiveBrokers = field(default=dict)
    isr_changes: IsrLooks = field(default_factory=_NoIsrLooks)
    # Whether the registry has this run of the broker as a member of a partition's ISR.
    is_member: Callable[[TopicPartition], bool] = field(default=_never)
    # Whether the registry has this run of the broker as an eligible replica of a partition.
    is_eligible: Callable[[TopicPartition], bool] = field(default=_never)
    # The leader epoch of a partition's last election that may have given up committed records; -1 for none.
    unclean_epoch_of: Callable[[TopicPartition], int] = field(default=_no_epoch)
    # Whether this broker is a replica that a reassignment adds.
    is_added: Callable[[TopicPartition], bool] = field(default=_never)
    # Whether this broker is a replica that a reassignment adds, and not in sync yet.
    joins_flushed: Callable[[TopicPartition], bool] = field(default=_never)
    # Told when a follower has committed records that the log of the partition's leader, this broker, lacks.
    on_lacking: Callable[[TopicPartition], None] = field(default=ignored)
    # Told which partition's log is gone, and the topic's id, so that those lead that have it.
    on_log_lost: Callable[[TopicPartition, bytes], None] = field(default=ignored)
    # Told when a follower has said that its log starts later than before.
    on_follower_log_start: Callable[[], None] = field(default=ignored)

    def __post_init__(self, throttle_windows: Windows | None) -> None:
        # What followers may copy from this broker in a second, and this broker as a follower.
        self.leader_throttle = ReplicationThrottle(self.purgatory.now_s, throttle_windows)
        self.follower_throttle = ReplicationThrottle(self.purgatory.now_s, throttle_windows)
        # What consumers ask for again, of all that this broker leads.
        self.rereads = Rereads()
