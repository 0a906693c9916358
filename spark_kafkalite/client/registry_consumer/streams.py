"""ConsumerConnector: message streams over a group that coordinates through the registry, without a master.

    connector = ConsumerConnector({"group.id": "g", "zookeeper.connect": "host:2181"})
    (stream,) = connector.create_message_streams({"clicks": 1})["clicks"]
    for record in stream:
        ...

This is Kafka 0.8's high-level consumer. The registry settles which consumer reads which partition (:mod:`.member`).
This module owns the rest: the streams, one shared read-ahead with a thread for each broker, and the offsets.

Offsets are committed every ``auto.commit.interval.ms``, before a partition is given up, at :meth:`shutdown` and by
:meth:`commit_offsets`. They are those of records that were processed, which is when the next one was asked for. After a
crash the successor begins at the last commit: records may come again, and none is lost. One lock orders all commits of
a connector, and the owner nodes go after the last one. A commit is made, and tried again, only in the session in which
the partitions were owned; so offsets do not go back but by a rewind. With offsets.storage=kafka the coordinator does
not know the owners. So a commit there is preceded by a request to the registry that an expired session cannot make. A
consumer that is stopped just between the two (SIGSTOP, a frozen machine) may set the offsets of its successor back to
its own.

Threads: callers' (streams, commits), the member's, the registry's callbacks, and one for automatic commits.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Self

from spark_kafkalite.client.consume.read_ahead import ReadAhead
from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.offset_stores.coordinator import CoordinatorOffsets
from spark_kafkalite.client.offset_stores.registry import RegistryOffsets
from spark_kafkalite.client.offset_stores.store import KAFKA, DualOffsets, OffsetStore
from spark_kafkalite.client.registry_consumer.cluster import RegistryCluster
from spark_kafkalite.client.registry_consumer.config import ConnectorConfig, connector_config
from spark_kafkalite.client.registry_consumer.member import RegistryMember
from spark_kafkalite.client.registry_consumer.message_stream import Lease, MessageStream, OwnedPartition, start
from spark_kafkalite.client.registry_consumer.topic_filters import Blacklist, TopicFilter, Whitelist
from spark_kafkalite.client.registry_link import RegistryLink, SessionLink, zookeeper_opener
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import ClosedError, ConfigError, KafkaliteError
from spark_kafkalite.model import CommittedOffset, TopicPartition, topic_name_problem
from spark_kafkalite.registry import consumer_nodes
from spark_kafkalite.registry.consumer_nodes import MAX_STREAMS, ConsumerRegistration, SubscriptionPattern
from spark_kafkalite.registry.store import SessionExpired, Store

__all__ = ["Blacklist", "ConsumerConnector", "MessageStream", "Whitelist"]

_LOG = logging.getLogger("spark_kafkalite.client")

# Coordinators forget offsets of groups without members by the age of the commit: it is renewed this often.
_RENEW_S: Final = 600.0


class ConsumerConnector:
    """A consumer of a group. Use it as a context manager, or call :meth:`shutdown`."""

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        open_registry: Callable[[], Store] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: object,
    ) -> None:
        """``settings`` have Kafka's names; ``keywords`` are the same in snake case (``group_id=...``).

        ``open_registry`` opens a session with the registry, instead of one to ``zookeeper.connect``.
        """
        self.config = config = connector_config(settings, keywords)
        self._open_registry = open_registry or _zookeeper(config)
        self.consumer_id = config.consumer_id or f"{socket.gethostname()}:{uuid.uuid4()}"
        self._clock = clock
        self._link = RegistryLink()
        self._cluster = RegistryCluster(config.consumer.client, self._link, clock)
        self._ahead = ReadAhead(config.consumer, self._cluster, clock, fair=True)
        self._group_offsets = CoordinatorOffsets(CoordinatorLink(self._cluster, config.group_id))
        self._offsets = self._offset_store(self._link)
        # By topic (None: with a filter, all topics) and thread.
        self._streams: dict[tuple[str | None, str], MessageStream] = {}
        self._member: RegistryMember | None = None
        # One commit at a time; held while the stores are written.
        self._committing = threading.RLock()
        self._renewed_s = clock.monotonic_s()
        # Held for moments only: who changes what streams own.
        self._assigning = threading.Lock()
        self._has_session = False
        self._former: dict[TopicPartition, OwnedPartition] = {}
        self._lease = Lease()
        self._stopping = False
        self._ending = threading.Event()
        self._committer: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "shut down" if self._ending.is_set() else f"{len(self.owned_partitions)} partitions"
        return f"ConsumerConnector({self.consumer_id} of {self.config.group_id!r}, {state})"

    def _offset_store(self, link: RegistryLink) -> OffsetStore:
        config = self.config
        registry: OffsetStore = RegistryOffsets(link, config.group_id)
        group: OffsetStore = self._group_offsets
        primary, secondary = (group, registry) if config.offsets_storage == KAFKA else (registry, group)
        return DualOffsets(primary, secondary) if config.dual_commit else primary

    # Streams --------------------------------------------------------------------------------------------------------

    def create_message_streams(self, topic_counts: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Join the group and return for each topic as many streams as asked for, over which its records are spread.

        Returns when this consumer owns its share. Once a connector. Raises RebalanceFailed when partitions could not be
        claimed, RegistryError when the registry does not answer.
        """
        if not topic_counts:
            raise ConfigError("create_message_streams: name at least one topic")
        for topic, count in topic_counts.items():
            if problem := topic_name_problem(topic):
                raise ConfigError(f"create_message_streams: {problem}")
            _check_count(topic, count)
        streams = {topic: self._new_streams(topic, count) for topic, count in topic_counts.items()}
        self._join(ConsumerRegistration(dict(topic_counts), SubscriptionPattern.STATIC, self._clock.wall_ms()))
        return streams

    def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, number_of_streams: int = 1
    ) -> list[MessageStream]:
        """Join the group and return streams over the records of all topics that the filter lets through, those that
        come later, too. As :meth:`create_message_streams` otherwise.
        """
        _check_count(repr(topic_filter), number_of_streams)
        streams = self._new_streams(None, number_of_streams)
        subscription = {topic_filter.pattern: number_of_streams}
        self._join(ConsumerRegistration(subscription, topic_filter.kind, self._clock.wall_ms()))
        return streams

    def _new_streams(self, topic: str | None, count: int) -> list[MessageStream]:
        if self._member is not None:
            raise ConfigError("this connector has made its message streams: use another connector for others")
        threads = [consumer_nodes.thread_id(self.consumer_id, number) for number in range(count)]
        made = [
            MessageStream(thread, self._ahead, self._lease, self.config.timeout_ms, self._clock) for thread in threads
        ]
        self._streams.update({(topic, stream.thread): stream for stream in made})
        return made

    def _join(self, registration: ConsumerRegistration) -> None:
        self._check_open()
        config = self.config
        self._member = RegistryMember(
            self._link,
            self._open_registry,
            config.group_id,
            self.consumer_id,
            registration,
            self,
            max_retries=config.rebalance_max_retries,
            backoff_ms=config.rebalance_backoff_ms,
            exclude_internal=config.exclude_internal,
            clock=self._clock,
        )
        try:
            self._member.start()
        except BaseException:
            self._end()
            raise
        if config.auto_commit:
            self._committer = threading.Thread(target=self._commit_forever, name="kafkalite-auto-commit", daemon=True)
            self._committer.start()

    @property
    def owned_partitions(self) -> dict[TopicPartition, str]:
        """The partitions that this consumer owns at the moment, and the thread (stream) of each."""
        return {owned.topic_partition: owned.thread for stream in self._streams.values() for owned in stream.owned()}

    # What the member tells ------------------------------------------------------------------------------------------

    def joined(self) -> None:
        """See ``member.RebalanceListener``."""
        with self._assigning:
            self._has_session = True

    def acquire(self, threads: Mapping[TopicPartition, str]) -> None:
        """See ``member.RebalanceListener``."""
        self._cluster.request_refresh()
        committed = self._offsets.read(threads, self._offsets_deadline())
        with self._assigning:
            if not self._has_session:
                raise SessionExpired("the session with the registry has expired")
            self._check_open()
            coming = [self._own(each, thread, committed.get(each)) for each, thread in threads.items()]
            self._ahead.assign([*self.owned_partitions, *threads])
            for owned in coming:
                start(self._ahead, owned)
                self._stream_of(owned).add(owned)

    def _own(self, topic_partition: TopicPartition, thread: str, committed: CommittedOffset | None) -> OwnedPartition:
        """Go on where this very thread was, if no other has committed since; else from the committed offset."""
        offset = None if committed is None else committed.offset
        former = self._former.pop(topic_partition, None)
        if former is not None and (former.thread, former.committed) == (thread, offset):
            return former
        return OwnedPartition(topic_partition, thread, offset)

    def _stream_of(self, owned: OwnedPartition) -> MessageStream:
        stream = self._streams.get((owned.topic_partition.topic, owned.thread))
        return stream or self._streams[None, owned.thread]

    def release(self, partitions: set[TopicPartition]) -> None:
        """See ``member.RebalanceListener``."""
        with self._assigning:
            removed = self._remove(partitions)
            self._former.update({owned.topic_partition: owned for owned in removed})
        # Also without anything to commit: a commit that is under way must be done before the owner nodes go.
        with self._committing:
            if self.config.auto_commit:
                processed = [(owned, owned.processed) for owned in removed if owned.processed is not None]
                try:
                    # Only this thread begins sessions, so the present one is still that of these partitions.
                    self._write(processed, self._link.store)
                except KafkaliteError as error:
                    _LOG.warning("offsets were not committed before partitions were given up: %s", error)

    def lost(self) -> None:
        """See ``member.RebalanceListener``."""
        with self._assigning:
            self._has_session = False
            self._remove(set(self.owned_partitions))
            self._former.clear()

    def _remove(self, partitions: set[TopicPartition]) -> list[OwnedPartition]:
        removed = [owned for stream in self._streams.values() for owned in stream.remove(partitions)]
        if removed:
            self._ahead.assign(self.owned_partitions)
        return removed

    def leased(self, until_s: float) -> None:
        """See ``member.RebalanceListener``."""
        if self._stopping:
            return
        lapsed = self._clock.monotonic_s() >= self._lease.until_s
        self._lease.until_s = until_s
        if lapsed:
            with self._ahead.lock:
                self._ahead.changed.notify_all()

    # Offsets --------------------------------------------------------------------------------------------------------

    def commit_offsets(self) -> None:
        """Commit what was processed, with up to ``offsets.commit.max.retries`` retries.

        The record that the calling thread got last counts as processed; of records in other threads' hands, none does.
        Raises the last error: with dual.commit.enabled, when either store could not be written.
        """
        self._check_open()
        self._commit(threading.get_ident(), self.config.offsets_max_retries)

    def rewind(self, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]) -> None:
        """Go on from these offsets, forwards or back, and commit them at once: when dual, to both stores.

        The partitions must be owned by this consumer: see :attr:`owned_partitions`.
        """
        self._check_open()
        wanted = {TopicPartition(*each): offset for each, offset in offsets.items()}
        for each, offset in wanted.items():
            if offset < 0:
                raise ConfigError(f"rewind of {each} to offset {offset}: it must be at least 0")
        with self._committing:
            session = self._link.store  # before the look at what is owned
            owned = {each.topic_partition: each for stream in self._streams.values() for each in stream.owned()}
            strangers = [str(each) for each in wanted if each not in owned]
            if strangers:
                raise ConfigError(f"rewind: {', '.join(strangers)} is not owned by this consumer at the moment")
            for each, offset in wanted.items():
                self._stream_of(owned[each]).rewind(each, offset)
            chosen = [(owned[each], offset) for each, offset in wanted.items()]
            self._write(chosen, session, self.config.offsets_max_retries, True)

    def _commit(self, reader: int, retries: int) -> None:
        with self._committing:
            if not self.owned_partitions:
                return  # there may be no session yet
            # In this order: what is still owned after the look is owned in this session, not in one before it.
            session = self._link.store
            processed = [pair for stream in self._streams.values() for pair in stream.processed(reader)]
            renewed = self._keeps_in_group and self._clock.monotonic_s() - self._renewed_s > _RENEW_S
            self._write(processed, session, retries, renewed)
            if renewed:
                self._renewed_s = self._clock.monotonic_s()

    @property
    def _keeps_in_group(self) -> bool:
        return self.config.dual_commit or self.config.offsets_storage == "kafka"

    def _write(
        self,
        processed: list[tuple[OwnedPartition, int]],
        session: Store,
        retries: int = 0,
        unchanged_too: bool = False,
    ) -> None:
        """Write the stores, for partitions that are owned in ``session``; the lock of commits is held."""
        offsets = {
            owned.topic_partition: offset for owned, offset in processed if unchanged_too or offset != owned.committed
        }
        if not offsets:
            return
        commits = {each: CommittedOffset(offset) for each, offset in offsets.items()}
        store = self._offset_store(SessionLink(self._link, session))
        for left in range(retries, -1, -1):
            try:
                if self._keeps_in_group:
                    self._prove(session)
                store.write(commits, self._offsets_deadline())
                break
            except KafkaliteError as error:
                if not left or not error.retriable:
                    raise
                self._cluster.pause(self.config.offsets_backoff_ms / 1000)
        for owned, _ in processed:
            owned.committed = offsets.get(owned.topic_partition, owned.committed)

    def _prove(self, session: Store) -> None:
        """Have the registry answer this session: its partitions are ours then."""
        path = consumer_nodes.consumer_id_path(self.config.group_id, self.consumer_id)
        self._link.wait(session.exists(path), self._offsets_deadline())

    def _offsets_deadline(self) -> Deadline:
        return Deadline.after_ms(self.config.offsets_timeout_ms, self._clock)

    def _commit_forever(self) -> None:
        reported = ""
        while not self._ending.wait(self.config.auto_commit_interval_ms / 1000):
            try:
                self._commit(0, 0)
                reported = ""
            except ClosedError:
                return
            except KafkaliteError as error:
                if reported != str(error):
                    reported = str(error)
                    _LOG.warning("offsets could not be committed, trying again: %s", error)

    # The end --------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Stop reading, commit (with auto.commit.enable), leave the group and end the streams. May be called again.

        The record that the calling thread got last counts as processed, unless an exception is being handled.
        """
        if self._ending.is_set():
            return
        reader = 0 if sys.exc_info()[0] is not None else threading.get_ident()
        self._stopping = True
        self._lease.until_s = 0.0
        if self.config.auto_commit and self._member is not None:
            try:
                self._commit(reader, 1)
            except KafkaliteError as error:
                _LOG.warning("offsets were not committed at shutdown: %s", error)
        self._end()

    def _end(self) -> None:
        with self._assigning:
            self._ending.set()
            self._remove(set(self.owned_partitions))
        for stream in self._streams.values():
            stream.end()
        # A commit under way is to be done before the owner nodes go; it is bounded in time.
        with self._committing:
            pass
        self._ahead.close()
        self._cluster.close()
        if self._member is not None:
            self._member.close()
        if self._committer is not None and self._committer is not threading.current_thread():
            self._committer.join(5)

    def _check_open(self) -> None:
        if self._ending.is_set():
            raise ClosedError("the connector has been shut down")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _check_count(what: str, count: int) -> None:
    if count < 1:
        raise ConfigError(f"{what}: {count} streams: ask for at least 1")
    if count > MAX_STREAMS:
        raise ConfigError(f"{what}: {count} streams: ask for at most {MAX_STREAMS}")


def _zookeeper(config: ConnectorConfig) -> Callable[[], Store]:
    if not config.zookeeper_connect:
        raise ConfigError("zookeeper.connect is not set: name the registry as host:port")
    return partial(
        zookeeper_opener(),
        config.zookeeper_connect,
        session_timeout_ms=config.session_timeout_ms,
        connect_timeout_s=config.connection_timeout_ms / 1000,
        auth=config.zookeeper_auth,
        make_chroot=False,
    )
