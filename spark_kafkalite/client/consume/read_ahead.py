"""A consumer's background work: finding where to start, and fetching ahead from every leader at once.

One thread per broker that leads assigned partitions fetches into :attr:`.TopicPartitionState.buffered`; one more, the
keeper, looks up positions that are not known (:mod:`.start_positions`) and starts the others when leaders change. All
state is under :attr:`ReadAhead.lock`; the consumer takes pieces out under the same lock and decodes them outside.

What is fetched next, within which memory, is decided in :mod:`.fetch_plan`, and how, in :mod:`.broker_fetcher`.

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
from spark_kafkalite.client.consume.broker_fetcher import AfterError, BrokerFetcher, FetchAnswer, after_error
from spark_kafkalite.client.consume.consumer_metrics import ConsumerMetrics
from spark_kafkalite.client.consume.fetch_plan import FetchPlan, Want, plan_fetch
from spark_kafkalite.client.consume.fetch_requests import FetchFrom
from spark_kafkalite.client.consume.fetched import BufferPool
from spark_kafkalite.client.consume.partition_state import TopicPartitionState
from spark_kafkalite.client.consume.start_positions import FetchCommitted, StartPositions
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.metadata import ClusterSnapshot
from spark_kafkalite.client.network.retry import TO_BE_MENDED, Backoff, Deadline, is_retriable
from spark_kafkalite.client.waiting_lock import waiting_lock
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import (
    ClosedError,
    ConfigError,
    CorruptMessage,
    InvalidRecord,
    KafkaliteError,
    LogTruncated,
    OffsetOutOfRange,
)
from spark_kafkalite.model import IsolationLevel, TopicPartition

_LOG = logging.getLogger("spark_kafkalite.client")

# How often the keeper looks by itself.
_IDLE_S: Final = 1.0
# A reader that meets the same damaged batch, or an offset out of range, again and again should not fill the log.
_LINE_EVERY_S: Final = 60.0
# What is fetched again a few times, because a leader may be made to hand over meanwhile.
_DAMAGE: Final = (CorruptMessage, InvalidRecord)


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
        metrics: ConsumerMetrics | None = None,
    ) -> None:
        """``fetch_committed`` is given by a consumer with a group: its partitions start from committed offsets.

        ``fair``: partitions have readers of their own, and one without a reader must not use up the room of others.
        Then each has its share of ``queued.max.bytes``, and may hold one batch beyond it.
        """
        self._fair = fair
        self.metrics = metrics
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._start = StartPositions(config, cluster, clock, fetch_committed)
        self.lock = waiting_lock()
        # Told of all that readers and fetching threads may wait for. The keeper is told apart: what it deals with is
        # rare, and waking it for every answer would take the interpreter from the reader that the answer is for.
        self.changed = threading.Condition(self.lock)
        self._keeper_wanted = threading.Condition(self.lock)
        self.states: dict[TopicPartition, TopicPartitionState] = {}
        self._auto_create = False
        self._requested_bytes = 0
        self._pool = BufferPool()
        self._threads: dict[int, threading.Thread] = {}
        self._fetchers: dict[int, BrokerFetcher] = {}
        self._keeper: threading.Thread | None = None
        self.closed = False
        self._reported: set[str] = set()
        # Where the damaged batch was that was logged last, and when that was.
        self._unreadable: dict[TopicPartition, tuple[int, float]] = {}
        self._turn = 0
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
                    state = self.states[topic_partition] = TopicPartitionState(topic_partition)
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

    def assigned(self, topic_partition: TopicPartition) -> TopicPartitionState:
        """Return an assigned partition's state; the lock is held. Raises ConfigError for one that is not assigned."""
        state = self.states.get(topic_partition)
        if state is None:
            raise ConfigError(f"{topic_partition} is not assigned to this consumer: assign() or subscribe() first")
        return state

    def move(
        self, topic_partitions: Iterable[TopicPartition] | None, position: int | None, reset_to: int | None
    ) -> None:
        """Have partitions (None: all) go on from an offset, or from where ``reset_to`` will be found to lie."""
        with self.lock:
            wanted = list(self.states) if topic_partitions is None else topic_partitions
            # All are looked up before the first is moved.
            for state in [self.assigned(each) for each in wanted]:
                state.move_to(position, reset_to)
            self.notify_moved()

    def set_paused(self, topic_partitions: Iterable[TopicPartition], paused: bool) -> None:
        """Have readers leave partitions out, or take them again."""
        with self.lock:
            for state in [self.assigned(each) for each in topic_partitions]:
                state.paused = paused
            self.changed.notify_all()

    def wait_for_position(self, topic_partition: TopicPartition, deadline: Deadline) -> int:
        """Return a partition's position once it is known. Raises TimeoutError, ClosedError, or why it has none."""
        with self.lock:
            while True:
                if self.closed:
                    raise ClosedError("the consumer has been closed")
                state = self.assigned(topic_partition)
                if state.position is not None:
                    return state.position
                if (error := state.take_error()) is not None:
                    self.notify_moved()
                    raise error
                left_s = deadline.left_s()
                if left_s <= 0:
                    raise TimeoutError(f"the position of {topic_partition} could not be found in time")
                self.changed.wait(left_s)

    def ends_seen(self, isolation: IsolationLevel) -> dict[TopicPartition, int]:
        """Return the ends of partitions as the last fetches saw them; those that were not fetched yet are left out."""
        committed = isolation is IsolationLevel.READ_COMMITTED
        with self.lock:
            return {
                each: max(state.position or 0, state.last_stable_offset if committed else state.high_watermark)
                for each, state in self.states.items()
                if state.high_watermark >= 0
            }

    def notify(self) -> None:
        """Wake the threads that wait for something to change."""
        with self.lock:
            self.notify_moved()

    def notify_moved(self) -> None:
        """Wake the threads that wait, after positions or leaders have changed; the lock is held."""
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
            fetchers = list(self._fetchers.values())
            threads = [*self._threads.values(), *([self._keeper] if self._keeper else [])]
            self.notify_moved()
        for fetcher in fetchers:
            fetcher.close()
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
                    if self._look_up(lookups):
                        self._cluster.pause(backoff.next_s())
                else:
                    self._cluster.refresh({each.topic for each in list(self.states)}, self._deadline())
                    if self._all_led():
                        backoff.reset()
                        continue
                    self._cluster.pause(backoff.next_s())
            except ClosedError:
                return
            except KafkaliteError as error:
                if isinstance(error, TO_BE_MENDED):
                    with self.lock:
                        self._tell(error, self.states.values())
                else:
                    self._report(error)
                with contextlib.suppress(ClosedError):
                    self._cluster.pause(backoff.next_s())

    def _tell(self, error: KafkaliteError, states: Iterable[TopicPartitionState]) -> None:
        """Have polls raise an error for these partitions, unless they have another; the lock is held."""
        for state in states:
            if state.error is None:
                state.error = error
        self.changed.notify_all()

    def _look_up(self, lookups: Mapping[TopicPartition, tuple[int, int | None]]) -> bool:
        """Find the positions of partitions that have none.

        Returns whether some need a fix before they are found: polls raise that error, and have it tried again.
        """
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
                    state.leader_epoch = state.fetch_epoch = outcome.leader_epochs[topic_partition]
                    state.reset_to = None
                elif topic_partition in failed and not is_retriable(failed[topic_partition]):
                    state.error = failed[topic_partition]
            self.changed.notify_all()
        for failure in failed.values():
            if is_retriable(failure):
                raise failure
        return any(isinstance(failure, TO_BE_MENDED) for failure in failed.values())

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
                fetcher = BrokerFetcher(self._cluster, self._pool, check_crcs=self._config.check_crcs)
                thread = threading.Thread(
                    target=self._fetch_forever, args=(leader, fetcher), name=f"kafkalite-consumer-{leader}", daemon=True
                )
                self._threads[leader], self._fetchers[leader] = thread, fetcher
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

    def unreadable(self, state: TopicPartitionState, position: int, error: KafkaliteError) -> None:
        """Deal with what was fetched at a position and cannot be read; the lock is held.

        A damaged batch is fetched again a few times, after growing pauses: a leader that is asked for it again and
        again checks it, and hands over to a replica that has it whole (rule R23 in docs/replication.md). Then polls
        raise the error until the partition is moved. One ERROR line names it, of the same position once a minute.
        """
        client, topic_partition, now_s = self._config.client, state.topic_partition, self._clock.monotonic_s()
        if isinstance(error, _DAMAGE) and (times := state.count_refetch(position)):
            pause_s = Backoff(client.retry_backoff_ms, client.retry_backoff_max_ms, attempts=times - 1).next_s()
            state.go_back_to(position)
            state.retry_at_s = now_s + pause_s
            _LOG.info("consumer: %s; it is fetched again in %d ms", error, pause_s * 1000)
            return
        state.fail_at(position, error)
        logged, logged_s = self._unreadable.get(topic_partition, (-1, -math.inf))
        if position != logged or now_s - logged_s >= _LINE_EVERY_S:
            self._unreadable[topic_partition] = position, now_s
            _LOG.error("consumer: %s", error)

    # One thread per broker ------------------------------------------------------------------------------------------

    def _fetch_forever(self, node: int, fetcher: BrokerFetcher) -> None:
        client = self._config.client
        backoff = Backoff(client.reconnect_backoff_ms, client.reconnect_backoff_max_ms)
        try:
            while (plan := self._wait_for_room(node)) is not None:
                try:
                    try:
                        fetcher.connect(node, self._deadline())
                        answer_ms = client.request_timeout_ms + plan.limits.max_wait_ms
                        positions = [want.position for want in plan.wants]
                        asked_s = self._clock.monotonic_s()
                        with fetcher.fetch(positions, plan.limits, Deadline.after_ms(answer_ms, self._clock)) as answer:
                            self._take(plan.wants, answer, self._clock.monotonic_s() - asked_s)
                    finally:
                        # Also when nobody could be asked: a lost broker must not use up the room for answers.
                        with self.lock:
                            self._requested_bytes -= plan.limits.max_bytes
                            self.changed.notify_all()
                    backoff.reset()
                except KafkaliteError as error:
                    if self.closed:
                        return
                    if isinstance(error, TO_BE_MENDED):
                        with self.lock:
                            self._tell(error, [want.state for want in plan.wants if want.is_current])
                    else:
                        self._report(error)
                    self._cluster.request_refresh()
                    self._cluster.pause(backoff.next_s())
        except ClosedError:
            return
        finally:
            fetcher.close()
            with self.lock:
                self._threads.pop(node, None)
                self._fetchers.pop(node, None)
                # Partitions that came to this leader meanwhile need a new thread.
                self.notify_moved()

    def _wait_for_room(self, node: int) -> FetchPlan | None:
        """Wait for something to fetch from a broker, and count its bytes as asked for; None to end."""
        with self.lock:
            while not self.closed:
                plan = plan_fetch(
                    self.states.values(),
                    self._cluster.snapshot,
                    node,
                    requested_bytes=self._requested_bytes,
                    turn=self._turn,
                    now_s=self._clock.monotonic_s(),
                    config=self._config,
                    fair=self._fair,
                )
                if plan is None:
                    return None
                if plan.wants:
                    self._requested_bytes += plan.limits.max_bytes
                    self._turn += 1
                    return plan
                self.changed.wait(plan.look_again_s)
            return None

    def _take(self, wants: Iterable[Want], answer: FetchAnswer, seconds: float) -> None:
        """Deal with the answer to a fetch; what was asked for before the partition was moved, or failed, is dropped."""
        sizes: list[tuple[str, int]] = []
        with self.lock:
            for want in wants:
                if want.is_current and not self.closed:
                    before = want.state.buffered_bytes
                    self._take_partition(want, answer)
                    if size := want.state.buffered_bytes - before:
                        sizes.append((want.state.topic_partition.topic, size))
            if self.metrics is not None:
                self.metrics.fetched(seconds, sizes, answer.throttle_time_ms)
            self.changed.notify_all()

    def _take_partition(self, want: Want, answer: FetchAnswer) -> None:
        """Deal with one partition's part of an answer; the lock is held."""
        if answer.is_throttled(want.position):
            return
        state = want.state
        try:
            fetched = answer.of(want.position)
            state.out_of_range_logged_s = None
            state.high_watermark = fetched.high_watermark
            state.last_stable_offset = fetched.last_stable_offset
            state.log_start_offset = fetched.log_start_offset
            if fetched.diverging_epoch is not None:
                state.fetch_epoch = fetched.diverging_epoch[0]
            if fetched.records is None:
                return
            least_offset = state.batch_end if state.batch_end == want.position.offset else 0
            piece = answer.piece(want.position, fetched, least_offset=least_offset)
        except KafkaliteError as error:
            self._refused(state, want.position, error)
            return
        if not piece.is_exhausted:
            state.fetch_epoch = piece.last_leader_epoch(state.fetch_epoch)
            state.fetch_offset = piece.end_offset
            state.buffered.append(piece)
            state.buffered_bytes += piece.size_bytes

    def _refused(self, state: TopicPartitionState, asked: FetchFrom, error: KafkaliteError) -> None:
        """Deal with the error of one partition; the lock is held."""
        after = after_error(error)
        offset = asked.offset
        if isinstance(error, LogTruncated):
            self._truncated(state, error)
        elif after is AfterError.MOVE:
            self._out_of_range(state, offset)
        elif isinstance(error, _DAMAGE):
            if state.buffered:
                # What was fetched before is still good; the position meets the error again when it gets there.
                self._put_off(state)
            else:
                self.unreadable(state, offset, error)
        elif after is AfterError.GIVE_UP:
            # Polls raise it once what was fetched before is used up.
            state.error = error
        else:
            self._report(error)
            info = self._cluster.snapshot.partition(state.topic_partition)
            # The answer itself, or metadata meanwhile, may have said who leads now.
            if after is not AfterError.FIND_LEADER or info is None or info.leader_epoch <= asked.leader_epoch:
                self._put_off(state)
            if after is AfterError.FIND_LEADER:
                self._cluster.request_refresh()

    def _put_off(self, state: TopicPartitionState) -> None:
        """Fetch a partition after a pause."""
        state.retry_at_s = self._clock.monotonic_s() + self._config.client.retry_backoff_ms / 1000

    def _truncated(self, state: TopicPartitionState, error: LogTruncated) -> None:
        """Go on where the logs part if there is a policy: its end of the log would double or skip far more."""
        if state.buffered:
            self._put_off(state)
            return
        if self._start.reset() is None:
            state.error = error
            return
        _LOG.warning("%s: going to %d", error, error.divergent_offset)
        state.move_to(error.divergent_offset, leader_epoch=error.leader_epoch)

    def _out_of_range(self, state: TopicPartitionState, offset: int) -> None:
        if state.buffered:
            # What was fetched before is still good; the position meets the error again when it gets there.
            self._put_off(state)
            return
        place = self._start.reset()
        if place is None:
            state.error = OffsetOutOfRange(
                f"{state.topic_partition}: offset {offset} is not in the log and auto.offset.reset=none: seek() first"
            )
            return
        policy, now_s, logged_s = self._config.offset_reset, self._clock.monotonic_s(), state.out_of_range_logged_s
        if logged_s is None or now_s - logged_s >= _LINE_EVERY_S:
            state.out_of_range_logged_s = now_s
            _LOG.warning("%s: offset %d is not in the log: going to the %s", state.topic_partition, offset, policy)
        state.move_to(None, place)
        if logged_s is not None:
            # A log that is damaged can lack its own earliest and latest offset.
            self._put_off(state)
        self._keeper_wanted.notify_all()
