"""A consumer's background work: finding where to start, and fetching ahead from every leader at once.

One thread per broker that leads assigned partitions fetches into :attr:`.PartitionState.buffered`; one more, the
keeper, looks up positions that are not known (:mod:`.start_positions`) and starts the others when leaders change. All
state is under :attr:`ReadAhead.lock`; the consumer takes pieces out under the same lock and decodes them outside.

Memory: a partition is fetched while less than two fetches' worth of it waits, and all that waits or is asked for stays
within ``queued.max.bytes``, but for single batches that are larger.

A seek raises the partition's ``generation``; answers that were asked for under an older one are dropped.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from spark_kafkalite.client.config import ConsumerConfig
from spark_kafkalite.client.consume.fetch_requests import FetchFrom, FetchLimits, PartitionFetched, fetch
from spark_kafkalite.client.consume.fetched import AnswerMemory, BufferPool, FetchedBatches, unreadable
from spark_kafkalite.client.consume.partition_state import PartitionState
from spark_kafkalite.client.consume.start_positions import FetchCommitted, StartPositions
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.metadata import ClusterSnapshot
from spark_kafkalite.client.network.retry import Backoff, Deadline, is_retriable, needs_refresh
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import ClosedError, CorruptMessage, KafkaliteError, OffsetOutOfRange
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.frame import Memory

_LOG = logging.getLogger("spark_kafkalite.client")

# A fetch that leaves out partitions whose buffers are full must not be parked for long by the idle others.
_SHORT_WAIT_MS: Final = 20
_IDLE_S: Final = 1.0
# A reader that seeks to a damaged batch again and again should not fill the log.
_UNREADABLE_PAUSE_S: Final = 60.0


class ReadAhead:
    """All assigned partitions of one consumer."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: ClusterClient,
        clock: Clock,
        *,
        fetch_committed: FetchCommitted | None = None,
        fair: bool = False,
    ) -> None:
        """``fetch_committed`` is given by a consumer with a group: its partitions start from committed offsets.

        ``fair``: partitions have readers of their own, and one that nobody reads must not use up the room of others.
        Then each has its share of ``queued.max.bytes``, and may hold one batch beyond it.
        """
        self._fair = fair
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._start = StartPositions(config, cluster, clock, fetch_committed)
        self.lock = threading.Lock()
        # Told of all that readers and fetching threads may wait for. The keeper is told apart: what it deals with is
        # rare, and waking it for every answer would take the interpreter from the reader that the answer is for.
        self.changed = threading.Condition(self.lock)
        self._keeper_wanted = threading.Condition(self.lock)
        self.states: dict[TopicPartition, PartitionState] = {}
        self._auto_create = False
        self._requested_bytes = 0
        self._pool = BufferPool()
        self._threads: dict[int, threading.Thread] = {}
        self._connections: dict[int, BrokerConnection] = {}
        self._keeper: threading.Thread | None = None
        self.closed = False
        self._reported: set[str] = set()
        # Where the damaged batch was that was logged last, and when that was.
        self._unreadable: dict[TopicPartition, tuple[int, float]] = {}
        self._rotation = 0
        cluster.add_listener(self._on_metadata)

    # For the consumer -----------------------------------------------------------------------------------------------

    def assign(
        self,
        topic_partitions: Iterable[TopicPartition],
        *,
        paused: Collection[TopicPartition] = (),
        auto_create: bool = True,
    ) -> None:
        """Make these the assigned partitions; those that stay keep position and buffers, new ones may be paused.

        ``auto_create``: the broker may make their topics, if ``allow.auto.create.topics`` has it so.
        """
        wanted = dict.fromkeys(topic_partitions)
        with self.lock:
            for topic_partition in [each for each in self.states if each not in wanted]:
                self.states.pop(topic_partition).move_to(None)
            for topic_partition in wanted:
                if topic_partition not in self.states:
                    state = self.states[topic_partition] = PartitionState(topic_partition)
                    state.paused = topic_partition in paused
                    state.reset_to = self._start.first_reset()
                    if state.reset_to is None:
                        state.error = OffsetOutOfRange(
                            f"{topic_partition} has no position and auto.offset.reset=none: call seek() first"
                        )
            self._auto_create = auto_create and self._config.allow_auto_create
            self._start_keeper()
            self.notify_moved()
        self._cluster.watch_topics({each.topic for each in wanted}, auto_create=self._auto_create)

    def notify(self) -> None:
        """Wake who waits for something to change."""
        with self.lock:
            self.notify_moved()

    def notify_moved(self) -> None:
        """Wake who waits, after positions or leaders have changed; the lock is held."""
        self.changed.notify_all()
        self._keeper_wanted.notify_all()

    def _start_keeper(self) -> None:
        if self._keeper is None and self.states:
            self._keeper = threading.Thread(target=self._keep, name="kafkalite-consumer", daemon=True)
            self._keeper.start()

    def close(self) -> None:
        """End all threads."""
        with self.lock:
            self.closed = True
            connections = list(self._connections.values())
            threads = [*self._threads.values(), *([self._keeper] if self._keeper else [])]
            self.notify_moved()
        for connection in connections:
            connection.close()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(5)
        with self.lock:
            for state in self.states.values():
                state.drop_buffered()

    # The keeper -----------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        backoff = Backoff(self._config.client.retry_backoff_ms, self._config.client.retry_backoff_max_ms)
        while True:
            with self.lock:
                if self.closed:
                    return
                lookups = {
                    state.topic_partition: (state.generation, state.reset_to)
                    for state in self.states.values()
                    if state.position is None and state.reset_to is not None and not state.error
                }
                if not lookups and not self._start_fetchers():
                    self._keeper_wanted.wait(_IDLE_S)
                    continue
            try:
                if lookups:
                    self._look_up(lookups)
                else:
                    self._cluster.refresh({each.topic for each in list(self.states)}, self._deadline())
                    if self._all_led():
                        backoff.reset()
                        continue
                    self._cluster.pause(backoff.next_s())
            except ClosedError:
                return
            except KafkaliteError as error:
                self._report(error)
                with contextlib.suppress(ClosedError):
                    self._cluster.pause(backoff.next_s())

    def _look_up(self, lookups: Mapping[TopicPartition, tuple[int, int | None]]) -> None:
        """Find the positions of partitions that have none."""
        places = {each: place for each, (_, place) in lookups.items() if place is not None}
        outcome = self._start.find(places, auto_create=self._auto_create)
        found, failed = outcome.positions, outcome.failed
        with self.lock:
            for topic_partition, (generation, _) in lookups.items():
                state = self.states.get(topic_partition)
                if state is None or state.generation != generation:
                    continue
                if topic_partition in found:
                    state.position = state.fetch_offset = found[topic_partition]
                    state.leader_epoch = outcome.leader_epochs[topic_partition]
                    state.reset_to = None
                elif topic_partition in failed and not is_retriable(failed[topic_partition]):
                    state.error = failed[topic_partition]
            self.changed.notify_all()
        for failure in failed.values():
            if is_retriable(failure):
                raise failure

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._config.client.request_timeout_ms, self._clock)

    def _start_fetchers(self) -> bool:
        """Start a thread for each leader without one (the lock is held); returns whether some leader is not known."""
        snapshot = self._cluster.snapshot
        unknown = False
        for state in self.states.values():
            leader = snapshot.leader(*state.topic_partition)
            if leader not in snapshot.nodes:
                unknown = True
            elif leader not in self._threads:
                thread = threading.Thread(
                    target=self._fetch_forever, args=(leader,), name=f"kafkalite-consumer-{leader}", daemon=True
                )
                self._threads[leader] = thread
                thread.start()
        return unknown

    def _all_led(self) -> bool:
        snapshot = self._cluster.snapshot
        with self.lock:
            return all(snapshot.leader(*each) in snapshot.nodes for each in self.states)

    def _on_metadata(self, snapshot: ClusterSnapshot) -> None:
        self.notify()

    def _report(self, error: KafkaliteError) -> None:
        """Log an error that is retried, once for each text."""
        text = str(error)
        if text not in self._reported and not self.closed:
            if len(self._reported) > 1000:
                self._reported.clear()
            self._reported.add(text)
            _LOG.warning("consumer: %s; it is tried again", text)

    def report_unreadable(self, topic_partition: TopicPartition, position: int, error: KafkaliteError) -> None:
        """Log that what is at a position cannot be read, and polls raise it: of the same one at most once a minute."""
        now_s = self._clock.monotonic_s()
        logged, logged_s = self._unreadable.get(topic_partition, (-1, -math.inf))
        if position != logged or now_s - logged_s >= _UNREADABLE_PAUSE_S:
            self._unreadable[topic_partition] = position, now_s
            _LOG.error("consumer: %s", error)

    # One thread per broker ------------------------------------------------------------------------------------------

    def _fetch_forever(self, node: int) -> None:
        client = self._config.client
        backoff = Backoff(client.reconnect_backoff_ms, client.reconnect_backoff_max_ms)
        connection: BrokerConnection | None = None
        try:
            while True:
                wants = self._wait_for_room(node)
                if wants is None:
                    return
                try:
                    try:
                        if connection is None or connection.closed:
                            connection = self._cluster.connect(node, self._deadline())
                            with self.lock:
                                self._connections[node] = connection
                                if self.closed:
                                    return
                        self._fetch(connection, *wants)
                    finally:
                        # Also when nobody could be asked: a lost broker must not use up the room for answers.
                        with self.lock:
                            self._requested_bytes -= wants[2]
                            self.changed.notify_all()
                    backoff.reset()
                except KafkaliteError as error:
                    if self.closed:
                        return
                    self._report(error)
                    self._cluster.request_refresh()
                    self._cluster.pause(backoff.next_s())
        except ClosedError:
            return
        finally:
            if connection is not None:
                connection.close()
            with self.lock:
                self._threads.pop(node, None)
                self._connections.pop(node, None)
                # Partitions that came to this leader meanwhile need a new thread.
                self.notify_moved()

    def _wait_for_room(self, node: int) -> tuple[list[tuple[PartitionState, int, FetchFrom]], int, int] | None:
        """Wait for something to fetch from a broker; returns it with the wait and byte limits, None to end."""
        config = self._config
        with self.lock:
            while True:
                if self.closed:
                    return None
                most = config.max_partition_fetch_bytes
                if self._fair:
                    most = max(1, min(most, config.queued_max_bytes // (2 * max(1, len(self.states)))))
                enough = 2 * max(1, most)
                snapshot = self._cluster.snapshot
                now_s = self._clock.monotonic_s()
                wants: list[tuple[PartitionState, int, FetchFrom]] = []
                waits_s = _IDLE_S
                leads = False
                is_cut = False
                for state in self.states.values():
                    info = snapshot.partition(state.topic_partition)
                    if info is None or info.leader != node:
                        continue
                    leads = True
                    if state.position is None or state.paused or state.error:
                        continue
                    if state.retry_at_s > now_s:
                        waits_s = min(waits_s, state.retry_at_s - now_s)
                        is_cut = True
                    elif state.buffered_bytes >= enough:
                        is_cut = True
                    else:
                        position = FetchFrom(
                            state.topic_partition,
                            state.fetch_offset,
                            info.leader_epoch,
                            most,
                        )
                        wants.append((state, state.generation, position))
                if not leads or node not in snapshot.nodes:
                    return None
                held = self._requested_bytes + sum(state.buffered_bytes for state in self.states.values())
                room = min(config.fetch_max_bytes, config.queued_max_bytes - held)
                if room <= 0 and self._fair:
                    # One batch, for somebody whose readers wait.
                    wants, room, is_cut = [want for want in wants if not want[0].buffered][:1], 1, True
                if wants and room > 0:
                    self._requested_bytes += room
                    # The broker fills an answer in the order of the request: everybody comes first in turn.
                    self._rotation += 1
                    turn = self._rotation % len(wants)
                    wait_ms = config.fetch_max_wait_ms
                    return wants[turn:] + wants[:turn], min(wait_ms, _SHORT_WAIT_MS) if is_cut else wait_ms, room
                self.changed.wait(waits_s)

    def _fetch(
        self,
        connection: BrokerConnection,
        wants: list[tuple[PartitionState, int, FetchFrom]],
        wait_ms: int,
        room: int,
    ) -> None:
        config = self._config
        buffer = self._pool.take()
        memory = None if buffer is None else AnswerMemory(self._pool, buffer)
        code, results = fetch(
            connection,
            [position for _, _, position in wants],
            FetchLimits(config.fetch_min_bytes, room, wait_ms, config.isolation, config.client_rack),
            Deadline.after_ms(config.client.request_timeout_ms + wait_ms, self._clock),
            config.client.client_id,
            buffer,
        )
        if code:
            raise error_for(code, f"broker {connection.name} refuses the fetch")
        if memory is None:
            memory = self._memory_of(results)
        if memory is not None:
            # Held while the pieces are made, so that an empty first one does not give the buffer back.
            memory.add_user()
        with self.lock:
            for state, generation, position in wants:
                fetched = results.get(state.topic_partition)
                if fetched is not None and state.generation == generation and not self.closed:
                    self._take(state, position, fetched, memory)
            self.changed.notify_all()
        if memory is not None:
            memory.release()

    def _memory_of(self, results: Mapping[TopicPartition, PartitionFetched]) -> AnswerMemory | None:
        """Have the fresh buffer that an answer came in kept for later ones."""
        for fetched in results.values():
            if fetched.records is not None and isinstance(fetched.records.obj, Memory):
                return AnswerMemory(self._pool, fetched.records.obj)
        return None

    def _take(
        self, state: PartitionState, position: FetchFrom, fetched: PartitionFetched, memory: AnswerMemory | None
    ) -> None:
        """Deal with one partition's result; the lock is held."""
        if fetched.error_code == OffsetOutOfRange.code:
            self._out_of_range(state, position.offset)
            return
        if fetched.error_code:
            error = error_for(
                fetched.error_code, f"{state.topic_partition}: cannot be fetched from offset {position.offset}"
            )
            if isinstance(error, CorruptMessage):
                # Kafka calls this retriable, for producers: a broker's damaged log does not mend itself.
                self._fail(state, position.offset, unreadable(state.topic_partition, position.offset, error))
                return
            if not is_retriable(error):
                state.error = error
                return
            self._report(error)
            state.retry_at_s = self._clock.monotonic_s() + self._config.client.retry_backoff_ms / 1000
            if needs_refresh(error):
                self._cluster.request_refresh()
            return
        state.high_watermark = fetched.high_watermark
        state.last_stable_offset = fetched.last_stable_offset
        state.log_start_offset = fetched.log_start_offset
        if fetched.records is None:
            return
        try:
            piece = FetchedBatches(
                state.topic_partition,
                fetched,
                position.offset,
                isolation=self._config.isolation,
                check_crcs=self._config.check_crcs,
                memory=memory,
            )
        except KafkaliteError as error:
            self._fail(state, position.offset, error)
            return
        if piece.is_exhausted:
            return
        state.fetch_offset = piece.end_offset
        state.buffered.append(piece)
        state.buffered_bytes += piece.size_bytes

    def _fail(self, state: PartitionState, position: int, error: KafkaliteError) -> None:
        """Have a partition's polls raise, once what was fetched before is used up; the lock is held."""
        state.error = error
        self.report_unreadable(state.topic_partition, position, error)

    def _out_of_range(self, state: PartitionState, offset: int) -> None:
        if state.buffered:
            # What was fetched before is still good; the position meets the error again when it gets there.
            state.retry_at_s = self._clock.monotonic_s() + self._config.client.retry_backoff_ms / 1000
            return
        place = self._start.reset()
        if place is None:
            state.error = OffsetOutOfRange(
                f"{state.topic_partition}: offset {offset} is not in the log and auto.offset.reset=none: seek() first"
            )
            return
        policy = self._config.offset_reset
        _LOG.warning("%s: offset %d is not in the log: going to the %s", state.topic_partition, offset, policy)
        state.move_to(None, place)
        self._keeper_wanted.notify_all()
