"""The producer's background thread: sends batches to their leaders, and takes the responses.

One thread waits on all brokers' sockets at once. Opening connections and asking for a producer id happen in short-lived
threads, so that a broker that does not answer delays only its own records. The thread owns the pipelines and all that
is in flight; the accumulator is used under its lock; callbacks of users run on this thread, outside all locks.

:mod:`.outcomes` decides what an answer means for its batches.
A lost connection or a request that is not answered within ``request.timeout.ms`` takes all its batches back to their
places; an idempotent producer then repeats them under the same sequences.
"""

from __future__ import annotations

import contextlib
import logging
import math
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from spark_kafkalite.client.config import ProducerConfig
from spark_kafkalite.client.lifecycle import Lifecycle
from spark_kafkalite.client.network.broker_link import WakeUp
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.metadata import topic_error
from spark_kafkalite.client.network.pipeline import InFlight, Pipeline
from spark_kafkalite.client.network.retry import REFUSED_FOR_GOOD, is_retriable
from spark_kafkalite.client.network.sockets import Buffer
from spark_kafkalite.client.produce.accumulator import Accumulator, PartitionQueue
from spark_kafkalite.client.produce.outcomes import Outcomes
from spark_kafkalite.client.produce.produce_requests import encode_produce, read_produce_answer
from spark_kafkalite.client.produce.producer_ids import ProducerIds
from spark_kafkalite.client.produce.producer_links import ProducerLinks
from spark_kafkalite.client.produce.producer_metrics import ProducerMetrics
from spark_kafkalite.client.produce.producer_phase import ProducerPhase
from spark_kafkalite.client.produce.undelivered import Undelivered
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import (
    BrokerUnreachable,
    ClosedError,
    FrameError,
    KafkaliteError,
    TopicAuthorizationFailed,
)
from spark_kafkalite.records.compression import CODECS

_LOG = logging.getLogger("spark_kafkalite.client")

# The longest time the thread sleeps: a bound on the damage of anything forgotten, not something that is relied on.
_MAX_SLEEP_S: Final = 1.0


# How often who waits for callbacks looks whether the thread has ended.
_TOLD_LOOK_S: Final = 0.1


class Sender(threading.Thread):
    """Sends until the producer is CLOSING and nothing is left, or ABORTING (:mod:`.producer_phase`)."""

    def __init__(
        self,
        config: ProducerConfig,
        cluster: ClusterClient,
        accumulator: Accumulator,
        life: Lifecycle[ProducerPhase],
        clock: Clock,
    ) -> None:
        super().__init__(name="kafkalite-producer", daemon=True)
        self._config = config
        self._cluster = cluster
        self._accumulator = accumulator
        self._life = life
        self._clock = clock
        # Held by the thread that uses links and pipelines: this one, or while it sleeps a producer's in send_now().
        # Taken before the accumulator's lock, never after it.
        self._turning = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_up = WakeUp()
        self._selector.register(self._wake_up, selectors.EVENT_READ, None)
        # Results of the short-lived threads, run on this one.
        self._finished: deque[Callable[[], None]] = deque()
        # Set when users' functions have been told of all that had its outcome before.
        self._told: deque[threading.Event] = deque()
        # When the thread will look again by itself; producers wake it only for something earlier. While it is awake,
        # always: it may have looked already.
        self.wakes_at_s = math.inf
        self._next_check_s = 0.0
        self._producer_ids = ProducerIds(
            cluster, clock, lambda result: self._after(lambda: self._got_producer_id(result))
        )
        self.metrics = ProducerMetrics(clock.monotonic_s)
        self._outcomes = Outcomes(config, cluster, accumulator, self.metrics)
        self._links = ProducerLinks(
            config.client,
            cluster,
            self._selector,
            clock,
            lambda node, opened: self._after(lambda: self._connected(node, opened)),
        )
        cluster.add_listener(lambda snapshot: self._after(self._take_leaders))

    # From other threads ---------------------------------------------------------------------------------------------

    def wake_by(self, at_s: float) -> None:
        """Have the thread check the accumulator at ``at_s`` (monotonic) at the latest."""
        if at_s < self.wakes_at_s:
            self.wake()

    def wake(self) -> None:
        """Have the thread check the accumulator now."""
        self._wake_up.signal()

    def send_now(self) -> None:
        """Send what is due from the calling thread, or have the thread do it when it is awake.

        Without linger a record waits for nothing but the way to the socket: going there directly saves waking a thread.
        No lock of the accumulator may be held.
        """
        if not self._turning.acquire(blocking=False):
            self.wake()
            return
        try:
            if self._life.state is ProducerPhase.ENDED:
                return
            now_s = self._clock.monotonic_s()
            self._dispatch(now_s)
            needs_thread = self._outcomes.has_callbacks or bool(self._finished)
        finally:
            self._turning.release()
        if needs_thread:
            self.wake()
        else:
            self.wake_by(now_s + self._config.client.request_timeout_ms / 1000)

    def state_metrics(self) -> dict[str, float]:
        """Return the metrics of what the producer has at present."""
        pipelines = list(self._links.pipelines())
        accumulator = self._accumulator
        return {
            "requests-in-flight": float(sum(len(pipeline.in_flight) for _, pipeline in pipelines)),
            "connection-count": float(len(pipelines)),
            "buffer-total-bytes": float(self._config.buffer_memory),
            "buffer-available-bytes": float(max(0, self._config.buffer_memory - accumulator.reserved_bytes)),
        }

    @property
    def undelivered(self) -> Undelivered:
        """The failures that were not read."""
        return self._outcomes.undelivered

    def refuse_records(self, state: ProducerPhase) -> None:
        """Have the producer take no more records, because it is CLOSING or ABORTING."""
        accumulator = self._accumulator
        with accumulator.lock:
            self._life.advance(state)
            # Code that adds to an open batch does not ask whether it still may.
            accumulator.close_batches()
            accumulator.memory_freed.notify_all()
        self.wake()

    @property
    def has_to_tell(self) -> bool:
        """Whether a batch has its outcome and some callbacks of users have not been called with it."""
        return self._outcomes.has_to_tell

    def wait_for_callbacks(self, deadline: float | None) -> None:
        """Wait until users' callbacks have been called with all outcomes known now; not from within such a callback.

        Raises TimeoutError at ``deadline`` (time.monotonic()).
        """
        if threading.current_thread() is self:
            return
        told = threading.Event()
        self._told.append(told)
        self.wake()
        # Who ends tells all that is left.
        while not told.wait(_TOLD_LOOK_S) and self.is_alive():
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError("callbacks have not been called in time; one of them may be waiting")

    def _after(self, action: Callable[[], None]) -> None:
        """Have the thread do something next; once it has ended, do it here."""
        self._finished.append(action)
        self.wake()
        if self._life.state is ProducerPhase.ENDED:
            self._run_finished()

    def _run_finished(self) -> None:
        # Two threads may come here at the end: popleft() gives each action to one of them.
        while self._finished:
            with contextlib.suppress(IndexError):
                self._finished.popleft()()

    # The thread -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            while self._life.state is not ProducerPhase.ABORTING and not self._is_done():
                self._turn()
        except Exception:
            _LOG.exception("the producer's thread ended with an error; records without acknowledgement fail")
        finally:
            self._end()

    def _is_done(self) -> bool:
        accumulator = self._accumulator
        if self._life.state is ProducerPhase.OPEN:
            return False
        with accumulator.lock:
            # Nobody answers requests with acks=0: what counts is that a socket has them.
            return not accumulator.has_unfinished() and not self._links.has_unwritten

    def _turn(self) -> None:
        with self._turning:
            # Taken before the callbacks run: what these waiters ask about is settled by now.
            told = [self._told.popleft() for _ in range(len(self._told))]
            now_s = self._clock.monotonic_s()
            wake_s = now_s + _MAX_SLEEP_S
            for deadline_s in (self._outcomes.expire(now_s), self._check_timeouts(now_s), self._dispatch(now_s)):
                if deadline_s is not None:
                    wake_s = min(wake_s, deadline_s)
        self._outcomes.run_callbacks()
        for event in told:
            event.set()
        # Who adds a batch after _dispatch() looked has woken us (the pipe is readable), or sees this time and decides.
        self.wakes_at_s = wake_s
        timeout_s = 0.0 if self._finished else max(0.0, wake_s - self._clock.monotonic_s())
        ready = self._selector.select(timeout_s)
        with self._turning:
            for key, events in ready:
                if key.data is None:
                    self._wake_up.drain()
                else:
                    self._serve(key.data, key.fileobj, events)
            self.wakes_at_s = math.inf
            self._wake_up.rearm()
            self._run_finished()

    def _serve(self, node: int, ready: object, events: int) -> None:
        pipeline = self._links.pipeline(node)
        # A producer's thread may have lost, or replaced, the connection since select() returned.
        if pipeline is None or pipeline is not ready:
            return
        try:
            if events & selectors.EVENT_READ:
                for request, frame in pipeline.read():
                    self._answer(node, pipeline, request, frame)
            if events & selectors.EVENT_WRITE:
                pipeline.write()
            self._links.watch(node, pipeline)
        except BrokerUnreachable as error:
            self._lose(node, error)

    # Sending --------------------------------------------------------------------------------------------------------

    def _dispatch(self, now_s: float) -> float | None:
        """Send what is due to brokers that can take it; return when something will be due next."""
        accumulator = self._accumulator
        with accumulator.lock:
            by_leader, next_s = accumulator.due(now_s)
        if not by_leader:
            self._outcomes.wait_for_leaders([], now_s)
            return next_s
        if self._config.idempotent and accumulator.producer_id < 0:
            again_s = self._producer_ids.ask(now_s)
            return next_s if again_s is None else min(again_s, next_s or again_s)
        nodes = self._cluster.snapshot.nodes
        self._without_leader([queue for node in by_leader if node not in nodes for queue in by_leader[node]], now_s)
        for node, queues in by_leader.items():
            if node not in nodes:
                continue
            pipeline = self._links.pipeline(node)
            if pipeline is None:
                again_s = self._links.connect(node, now_s)
                if again_s is not None:
                    next_s = again_s if next_s is None else min(next_s, again_s)
                continue
            try:
                self._send_to(node, pipeline, queues, now_s)
            except BrokerUnreachable as error:
                self._lose(node, error)
                return now_s
        return next_s

    def _without_leader(self, queues: list[PartitionQueue], now_s: float) -> None:
        """Look for the leaders of partitions without one whose batches wait. Fail the batches of a topic that this
        client may not describe."""
        topics = self._cluster.snapshot.topics
        waiting = []
        for queue in queues:
            topic = topics.get(queue.topic)
            if topic is not None and topic.error_code == TopicAuthorizationFailed.code:
                self._outcomes.fail([queue], topic_error(queue.topic, topic.error_code))
            else:
                waiting.append(queue)
        self._outcomes.wait_for_leaders(waiting, now_s)
        if queues:
            self._cluster.request_refresh()

    def _send_to(self, node: int, pipeline: Pipeline, queues: list[PartitionQueue], now_s: float) -> None:
        config, accumulator = self._config, self._accumulator
        if pipeline.wants_renewal:
            # Something is always in flight: it takes no more, and is renewed once the last answer is there.
            if not pipeline.in_flight and not pipeline.wants_write:
                self._links.renew(node)
            return
        while queues and len(pipeline.in_flight) < config.max_in_flight and not pipeline.wants_write:
            with accumulator.lock:
                batches = accumulator.drain(queues, node, config.max_request_size)
            if not batches:
                break
            by_batch = [(accumulator.queues[batch.topic, batch.partition], batch) for batch in batches]
            for batch in batches:
                codec = config.codec_of(batch.topic)
                batch.encode(CODECS[codec], config.levels.get(codec))
            correlation_id = pipeline.connection.next_correlation_id()
            pieces = encode_produce(
                batches,
                version=pipeline.version,
                correlation_id=correlation_id,
                client_id=config.client.client_id,
                acks=config.acks,
                timeout_ms=config.client.request_timeout_ms,
            )
            request = InFlight(correlation_id, now_s, by_batch)
            # Before it is sent: with acks=0 a batch is done then, and its memory may be another's.
            self.metrics.sent(node, batches, sum(map(len, pieces)), now_s)
            if config.acks:
                pipeline.send(request, pieces, answered=True)
            else:
                self._send_unanswered(pipeline, request, pieces)
            with accumulator.lock:
                # Not before: with acks=0 the batches have had their outcome by now, and the next ones need not wait.
                queues = accumulator.still_due(queues, now_s)
        self._links.watch(node, pipeline)

    def _send_unanswered(self, pipeline: Pipeline, request: InFlight, pieces: list[Buffer]) -> None:
        """With acks=0 a batch counts as sent when the socket has taken it."""
        try:
            pipeline.send(request, pieces, answered=False)
        except BrokerUnreachable as error:
            for queue, batch in request.batches:
                self._outcomes.settle(queue, batch, -1, -1, error)
            raise
        for queue, batch in request.batches:
            self._outcomes.settle(queue, batch, -1, -1, None)

    def _connected(self, node: int, opened: BrokerConnection | KafkaliteError) -> None:
        if self._life.state is ProducerPhase.ENDED:
            if isinstance(opened, BrokerConnection):
                opened.close()
            return
        error = self._links.connected(node, opened)
        if error is None:
            return
        self._outcomes.last_problem = error
        if isinstance(error, REFUSED_FOR_GOOD):
            # Waiting for the delivery timeout would only hide the reason. For later records it is tried again.
            with self._accumulator.lock:
                queues = [each for each in self._accumulator.active_queues() if each.leader == node]
            self._outcomes.fail(queues, error)
        self._cluster.request_refresh()

    def _got_producer_id(self, result: tuple[int, int] | KafkaliteError) -> None:
        if isinstance(result, tuple):
            with self._accumulator.lock:
                self._accumulator.producer_id, self._accumulator.producer_epoch = result
            return
        self._outcomes.last_problem = result
        if not is_retriable(result) and not isinstance(result, ClosedError):
            # The broker will never give one: waiting for the delivery timeout would only hide the reason.
            self._outcomes.fail_all(result)

    # Answers --------------------------------------------------------------------------------------------------------

    def _answer(self, node: int, pipeline: Pipeline, request: InFlight, frame: memoryview) -> None:
        try:
            answer = read_produce_answer(frame, pipeline.version)
        except FrameError as error:
            # The request is no longer in the pipeline: put it back so that losing the connection takes its batches
            # back.
            pipeline.in_flight.appendleft(request)
            raise BrokerUnreachable(f"broker {pipeline.connection.name}: its answer cannot be read: {error}") from error
        now_s = self._clock.monotonic_s()
        self.metrics.answered(node, now_s - request.sent_s, len(frame), answer.throttle_time_ms, now_s)
        self._outcomes.take(request.batches, answer.outcomes, now_s)
        if answer.leaders:
            self._cluster.take_leaders(answer.leaders, answer.endpoints)

    # Time and failure -----------------------------------------------------------------------------------------------

    def _check_timeouts(self, now_s: float) -> float | None:
        timeout_s = self._config.client.request_timeout_ms / 1000
        if now_s < self._next_check_s:
            return self._next_check_s
        idle_s = self._config.client.connections_max_idle_ms / 1000
        # Requests from now on time out later than this.
        next_s = now_s + timeout_s
        for node, pipeline in self._links.pipelines():
            if pipeline.in_flight or pipeline.wants_write:
                since_s = pipeline.in_flight[0].sent_s if pipeline.in_flight else pipeline.used_s
                times_out_s = since_s + timeout_s
                if times_out_s <= now_s:
                    name = pipeline.connection.name
                    self._lose(node, BrokerUnreachable(f"broker {name} did not answer within {timeout_s} s"))
                else:
                    next_s = min(next_s, times_out_s)
            elif idle_s >= 0 and now_s - pipeline.used_s > idle_s:
                self._links.drop(node)
        self._next_check_s = next_s
        return next_s

    def _lose(self, node: int, error: BrokerUnreachable) -> None:
        """Give a broken connection up and take its batches back."""
        pipeline = self._links.pipeline(node)
        if pipeline is None:
            return
        self._links.lose(node)
        now_s = self._clock.monotonic_s()
        if pipeline.in_flight:
            _LOG.warning("producer: %s; %d requests in flight are repeated", error, len(pipeline.in_flight))
        self._outcomes.last_problem = error
        for request in pipeline.in_flight:
            for queue, batch in request.batches:
                self._outcomes.retry(queue, batch, error, now_s)
        pipeline.in_flight.clear()
        self._cluster.request_refresh()

    def _take_leaders(self) -> None:
        snapshot = self._cluster.snapshot
        with self._accumulator.lock:
            self._accumulator.set_leaders(snapshot.leader)

    def _end(self) -> None:
        self.refuse_records(ProducerPhase.ABORTING)
        with self._turning:
            self._life.advance(ProducerPhase.ENDED)
            self._links.close()
            self._run_finished()
            self._selector.close()
            self._wake_up.close()
        self._outcomes.fail_all(ClosedError("the producer was closed before the record was acknowledged"))
        self._outcomes.run_callbacks()
