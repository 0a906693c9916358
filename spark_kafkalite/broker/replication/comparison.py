"""Has this broker compare the logs that it follows with their leaders', and find replicas that differ.

A round (``rules.compare_rounds``) goes over all partitions in whose ISR this broker is, one after the other. Of each it
asks the leader for the checksum of one range of offsets below the high watermark after the other, at most 1 MB of them,
and reads its own bytes of that range in a thread. Where the sums differ both sides check the batches
(``rules.comparing`` decides what follows), and one ERROR line reports the result. Each side takes note of its own
damage. Where both sides have sound batches the follower leaves the ISR, sets its log aside and copies it again
(``isr_leaving``).

What retention or compaction has removed on either side is left out. A partition whose leader changes is begun again,
and one that is not in sync waits until it is. A leader whose version of the inner wire has no CompareReplicas is
compared with in a later round.

It costs nothing between rounds: one timer, and one line in ``kafkalite-compared`` of the first log directory.

An operator has partitions compared at once (:meth:`Comparison.compare_now`). They take turns with a round, so that both
together keep to the speed that is allowed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from spark_kafkalite.broker.network.peers import Peers
from spark_kafkalite.broker.replication.compared_log import MOST_BYTES, ComparedLog
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.broker.replication.rules.compare_rounds import CompareRounds
from spark_kafkalite.broker.replication.rules.comparing import Outcome, Range, Side, Verdict, verdict
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.clock import Clock
from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log.files.small_files import COMPARED_FILE, read_compared_ms, write_compared_ms
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.io_threads import IoThreads
from spark_kafkalite.printable import first_of
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.znodes import COMPARES_FROM_INNER_WIRE_VERSION
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.inner.compare_replicas import ComparedRange, CompareReplicasRequest, CompareReplicasResponse

logger = logging.getLogger(__name__)

# How often a round comes back to partitions that were not in sync, or whose leader changed, and how long it waits at
# most before that: more than an hour in all.
_TRIES: Final = 100
_LONGEST_WAIT_S: Final = 60.0
_NAMED: Final = 5
_NOT_IN_SYNC: Final = "it is not in sync. Compare it again when kafkalite cluster status shows it in sync"
# After so many errors in a row the next partition comes first.
_FAILURES: Final = 5

# The states of a comparison that was asked for.
WAITING: Final = "waiting"
COMPARING: Final = "comparing"
SAME: Final = "same"
DIFFERENT: Final = "different"
FAILED: Final = "failed"

Ask = Callable[[CompareReplicasRequest], Awaitable[CompareReplicasResponse]]


class _Ended(Enum):
    """How the comparison of a partition ended: for this round, or to be tried once more."""

    DONE = "done"
    AGAIN = "again"


class _Found(NamedTuple):
    """What both sides have of a range that differs."""

    start_offset: int
    end_offset: int
    mine: Side
    my_epochs: tuple[int, int]
    leaders: Side
    leaders_epochs: tuple[int, int]


class _AskedComparison:
    """A comparison that an operator has asked for."""

    __slots__ = ("comparison", "ended", "why_not")

    def __init__(self) -> None:
        self.comparison: PartitionComparison | None = None
        self.ended: _Ended | None = None
        self.why_not = "this broker does not follow it, or its leader is of an older version"

    def shown(self) -> tuple[str, str]:
        """Return its state, and a text."""
        compared = self.comparison
        if self.ended is None:
            return (WAITING, "others come first") if compared is None else (COMPARING, compared.progress)
        if compared is None or self.ended is _Ended.AGAIN:
            return FAILED, self.why_not
        return (DIFFERENT, "; ".join(compared.found)) if compared.found else (SAME, compared.extent)


class Comparison:
    """See the module's text. Lives in one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        io: IoThreads,
        clock: Clock,
        logs: LogManager,
        replicas: Replicas,
        services: PartitionServices,
        view: ClusterView,
        peers: Peers,
    ) -> None:
        self._loop = loop
        self._io = io
        self._clock = clock
        self._logs = logs
        self._replicas = replicas
        self._services = services
        self._view = view
        self._peers = peers
        self._rounds = CompareRounds(
            config["replica.compare.max.bytes.per.second"], config["replica.compare.interval.ms"]
        )
        self._initial_delay_s = config["log.initial.task.delay.ms"] / 1000
        self._timeout_s = config["replica.socket.timeout.ms"] / 1000
        self._working: asyncio.Task[None] | None = None
        # The task that has it compares the next range, and waits as long as that takes.
        self._turn = asyncio.Lock()
        # What an operator has asked for since the start.
        self._asked: dict[TopicPartition, _AskedComparison] = {}
        self._comparing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        if self._rounds.are_wanted:
            self._working = self._loop.create_task(self._work())
            self._working.add_done_callback(_ended)

    async def stop(self) -> None:
        """End; what is being compared is found again by the next round."""
        tasks = [task for task in (self._working, self._comparing) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # By hand --------------------------------------------------------------------------------------------------------

    def compare_now(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Compare those of these partitions that this broker follows, one after the other. One that is being compared
        goes on."""
        for key in topic_partitions:
            partition, before = self._replicas.find(key), self._asked.get(key)
            if partition is not None and not partition.is_leader and (before is None or before.ended is not None):
                self._asked[key] = _AskedComparison()
        if self._comparing is None or self._comparing.done():
            self._comparing = self._loop.create_task(self._compare_asked())
            self._comparing.add_done_callback(_ended)

    def asked(self, topic_partition: TopicPartition) -> tuple[str, str] | None:
        """Return the state of a comparison that was asked for, and a text about it; None where none was."""
        asked = self._asked.get(topic_partition)
        return None if asked is None else asked.shown()

    async def _compare_asked(self) -> None:
        while left := [key for key, asked in self._asked.items() if asked.ended is None]:
            for key in left:
                asked = self._asked[key]
                if self._rounds.are_wanted:
                    asked.ended = await self._compare(key, asked)
                else:
                    asked.ended, asked.why_not = _Ended.DONE, "replica.compare.max.bytes.per.second is 0"

    # Rounds ---------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        await asyncio.sleep(self._initial_delay_s)
        ended_ms = await self._io.run(self._read_note)
        stopped_in_order = self._logs.was_clean
        while True:
            wait_s = self._rounds.wait_s(self._clock.wall_ms(), ended_ms, stopped_in_order=stopped_in_order)
            await asyncio.sleep(wait_s)
            stopped_in_order = True
            followed = [each.topic_partition for each in self._replicas if isinstance(each.role, Follower)]
            if followed:
                await self._io.run(lambda: self._note(0))
                await self._compare_all(followed)
            ended_ms = self._clock.wall_ms()
            await self._io.run(lambda ended_ms=ended_ms: self._note(ended_ms))  # type: ignore[misc]

    async def _compare_all(self, followed: Iterable[TopicPartition]) -> None:
        left = sorted(followed)
        for number in range(_TRIES):
            if number:
                # Asked at each change of the cluster, too; a broker acts on one a little later.
                with contextlib.suppress(TimeoutError):
                    await self._view.wait_for(
                        lambda _, left=left: any(map(self._is_comparable, left)),  # type: ignore[misc]
                        min(2.0 ** (number - 1), _LONGEST_WAIT_S),
                    )
            left = [each for each in left if await self._compare(each) is _Ended.AGAIN]
            if not left:
                return

    def _read_note(self) -> int:
        try:
            return max((read_compared_ms(self._logs.fs, path) for path in self._note_paths), default=0)
        except OSError as error:
            logger.debug("cannot read when the last comparison ended: %s", error)
            return 0

    def _note(self, ended_ms: int) -> None:
        for path in self._note_paths:
            try:
                write_compared_ms(self._logs.fs, path, ended_ms)
            except OSError as error:
                logger.debug("cannot write %s: %s", path, error)

    @property
    def _note_paths(self) -> list[str]:
        return [f"{each.path}/{COMPARED_FILE}" for each in list(self._logs.directories.online)[:1]]

    # A partition ----------------------------------------------------------------------------------------------------

    def _is_comparable(self, topic_partition: TopicPartition) -> bool:
        """Whether this broker follows the partition, in sync, and its log can be read; and its leader lives."""
        return not self._why_not_now(topic_partition)

    def _why_not_now(self, topic_partition: TopicPartition) -> str:
        """Return why a partition cannot be compared at present, and what to do; "" where it can."""
        partition = self._replicas.find(topic_partition)
        role = None if partition is None else partition.role
        if partition is None or not isinstance(role, Follower) or role.leader_id not in self._view.state.brokers:
            return "it has no live leader: kafkalite cluster status shows why. Compare it again when it has one"
        if not partition.log.local.is_ready:
            return "its log is not loaded yet. Compare it again when kafkalite cluster status shows it in sync"
        if not self._services.is_member(topic_partition):
            return _NOT_IN_SYNC
        return ""

    async def _compare(self, topic_partition: TopicPartition, asked: _AskedComparison | None = None) -> _Ended:
        partition = self._replicas.find(topic_partition)
        if partition is None or partition.is_leader or partition.storage_error is not None:
            # Its followers compare.
            return _Ended.DONE
        role, why_not = partition.role, self._why_not_now(topic_partition)
        if not isinstance(role, Follower) or why_not:
            if asked is not None:
                asked.why_not = why_not
            return _Ended.AGAIN
        broker = self._view.state.brokers[role.leader_id]
        if broker.inner_wire_version < COMPARES_FROM_INNER_WIRE_VERSION:
            return _Ended.DONE

        async def ask(request: CompareReplicasRequest) -> CompareReplicasResponse:
            answer: CompareReplicasResponse = await self._peers.ask(broker, request, 0, timeout_s=self._timeout_s)
            if answer.error_code:
                raise error_for(answer.error_code)
            return answer

        compared = PartitionComparison(partition, role, self._services, self._rounds, ask)
        if asked is not None:
            asked.comparison = compared
        while True:
            async with self._turn:
                if await compared.is_done():
                    break
            is_hosted = self._replicas.find(topic_partition) is partition
            if not is_hosted or not compared.is_current or compared.has_failed:
                if asked is not None:
                    asked.why_not = compared.why_ended
                return _Ended.AGAIN
        return _Ended.DONE


class PartitionComparison:
    """One partition, compared with its leader under one leader epoch, below what is committed when it begins."""

    def __init__(
        self,
        partition: Partition,
        role: Follower,
        services: PartitionServices,
        rounds: CompareRounds,
        ask: Ask,
    ) -> None:
        """``ask`` returns the leader's answer, or raises the error in it, and what ``Peers.ask`` raises."""
        self._partition = partition
        self._role = role
        self._services = services
        self._rounds = rounds
        self._ask = ask
        self._log = ComparedLog(partition.log, services.io)
        self._offset = self._first_offset = self._log.first_offset
        self._until_offset = partition.high_watermark
        self._failures = 0
        self._error: Exception | None = None
        # What follows from each difference.
        self.found: list[str] = []

    @property
    def is_current(self) -> bool:
        """Whether this broker still follows the same leader, in sync, under the same epoch."""
        return self._is_followed and self._services.is_member(self._partition.topic_partition)

    @property
    def _is_followed(self) -> bool:
        return self._partition.role is self._role and not self._role.has_ended

    @property
    def why_ended(self) -> str:
        """Why the comparison ended before its end, and what to do."""
        if not self._is_followed:
            return "its leader, or the leader epoch, has changed during the comparison. Compare it again now"
        if not self._services.is_member(self._partition.topic_partition):
            return _NOT_IN_SYNC
        return (
            f"{self._failures} errors in a row, the last one: {self._error}. Read the logs of this broker and of "
            f"broker {self._role.leader_id}, its leader, and compare it again when both answer"
        )

    @property
    def progress(self) -> str:
        """How far it is."""
        return f"up to offset {self._offset} of {self._until_offset}"

    @property
    def extent(self) -> str:
        """What has been compared."""
        if self._first_offset >= self._offset:
            return "no records"
        return f"offsets {self._first_offset} to {self._offset - 1}"

    @property
    def has_failed(self) -> bool:
        """Whether there have been many errors in a row, so that other partitions come first."""
        return self._failures >= _FAILURES

    async def is_done(self) -> bool:
        """Compare the next range, and wait as long as that takes at the speed that is allowed; return whether there is
        nothing more to compare."""
        self._offset = max(self._offset, self._log.first_offset)
        size_bytes, requests = 0, 1
        try:
            answer = await self._ask(self._request(self._until_offset, self._rounds.bytes_at_once(MOST_BYTES)))
            start_offset, end_offset = self._offset, answer.end_offset
            if answer.first_offset > start_offset:
                self._offset = answer.first_offset
            elif end_offset > start_offset:
                leaders = Side(answer.size_bytes, answer.checksum)
                mine = await self._log.sum_of(start_offset, end_offset)
                size_bytes = max(mine.size_bytes, leaders.size_bytes)
                if verdict(mine, leaders, is_compacted=False).outcome is not Outcome.SAME and self.is_current:
                    size_bytes, requests = 2 * size_bytes, 2
                    if await self._look(start_offset, end_offset):
                        return True
                self._offset = end_offset
            else:
                return True
            self._failures = 0
        except (KafkaliteError, TimeoutError) as error:
            logger.debug("%s cannot be compared at present: %s", self._partition.topic_partition, error)
            self._failures += 1
            self._error = error
        await asyncio.sleep(self._rounds.pause_s(size_bytes, requests * (1 + self._failures)))
        return self._offset >= self._until_offset

    def _request(self, end_offset: int, max_bytes: int = 0) -> CompareReplicasRequest:
        partition = self._partition
        return CompareReplicasRequest(
            replica_id=self._services.broker_id,
            topic_id=partition.topic_id,
            partition=partition.topic_partition.partition,
            leader_epoch=self._role.epoch,
            start_offset=self._offset,
            end_offset=end_offset,
            max_bytes=max_bytes,
        )

    async def _look(self, start_offset: int, end_offset: int) -> bool:
        """Find out what is wrong with a range that differs, and do what follows; return whether this log is copied
        again."""
        mine, my_epochs = await self._log.faults_of(start_offset, end_offset)
        request = self._request(end_offset)
        request.is_detailed = True
        request.damaged, request.missing, request.is_compacted = (
            _to_wire(mine.damaged), _to_wire(mine.missing), mine.is_compacted
        )  # fmt: skip
        answer = await self._ask(request)
        if answer.end_offset != end_offset or answer.first_offset > start_offset or not self.is_current:
            return False
        leaders = Side(
            answer.size_bytes,
            answer.checksum,
            _from_wire(answer.damaged),
            _from_wire(answer.missing),
            answer.is_compacted,
        )
        decided = verdict(mine, leaders, is_compacted=self._partition.log.config.is_compacted)
        if decided.outcome in (Outcome.SAME, Outcome.LEFT_OUT):
            return False
        found = _Found(start_offset, end_offset, mine, my_epochs, leaders, (answer.first_epoch, answer.last_epoch))
        self._tell(found, decided)
        if decided.mine:
            self._partition.damage_found(decided.mine, f"it differs from the log of broker {self._role.leader_id}")
        if decided.outcome is not Outcome.COPY_AGAIN:
            return False
        self._services.on_differing(self._partition)
        return True

    def _tell(self, found: _Found, decided: Verdict) -> None:
        me, leader = self._services.broker_id, self._role.leader_id
        follows = [f"offsets {_text(decided.mine)} are damaged in broker {me}'s log"] if decided.mine else []
        follows += [f"offsets {_text(decided.others)} are damaged in broker {leader}'s log"] if decided.others else []
        if decided.outcome is Outcome.COPY_AGAIN:
            follows.append(
                f"the batches of both are sound, and consumers have read broker {leader}'s: broker {me} leaves the "
                "ISR, sets its log aside and copies it again"
            )
        self.found.append("; ".join(follows))
        logger.error(
            "%s: offsets %d to %d of broker %d differ from those of broker %d, its leader in epoch %d: %s, but %s; %s",
            self._partition.topic_partition, found.start_offset, found.end_offset - 1, me, leader, self._role.epoch,
            _side_text(me, found.mine, found.my_epochs), _side_text(leader, found.leaders, found.leaders_epochs),
            "; ".join(follows),
        )  # fmt: skip


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("no logs are compared with their leaders' any more", exc_info=task.exception())


def _side_text(broker_id: int, side: Side, epochs: tuple[int, int]) -> str:
    if side.size_bytes < 0:
        return f"broker {broker_id}'s cannot be read"
    return (
        f"broker {broker_id} has {side.size_bytes} bytes with checksum {side.checksum:08x}, "
        f"of leader epochs {epochs[0]} to {epochs[1]}"
    )


def _text(ranges: Sequence[Range]) -> str:
    return first_of([f"{start} to {end - 1}" for start, end in ranges], _NAMED, "ranges")


def _to_wire(ranges: Iterable[Range]) -> list[ComparedRange]:
    return [ComparedRange(start_offset=start, end_offset=end) for start, end in ranges]


def _from_wire(ranges: Iterable[ComparedRange]) -> tuple[Range, ...]:
    return tuple((each.start_offset, each.end_offset) for each in ranges)
