"""The controller: the one broker that elects leaders and changes the list of topics. One candidacy a registry session.

``role`` has the claim and the fence of all writes. Partition states are written at the version that was read, because
leaders write them too (their ISR). The controller sends brokers nothing: they watch the registry (rule R9).

Elections (``elections``) and topic changes (``topic_changes``) run one after the other, each on a snapshot that has
caught up with the registry. Only the controller creates and deletes topics, so between that snapshot and the writes no
topic can be replaced by another one whose node versions happen to be equal.

A topic of more partitions than fit into one multi is written in several: a crash between leaves partitions without
state, which the next controller gives one, or a marker in /admin/delete_topics, whose deletion it finishes.

One task does it all, for as long as the session lasts. It claims the role when it is free, checks everything once it
has it and after every reconnection, and then what changes (rule R13). A step that fails is done again by itself, after
a pause that grows. If the role is lost, the next write finds that out.

The role ends with the session: what is being written then fails, and may or may not have happened.
Source: kafka.controller.KafkaController of Apache Kafka 3.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import (
    KafkaError,
    NotController,
    RegistryError,
    RequestTimedOut,
)
from spark_kafkalite.model import (
    BrokerId,
    ControllerEpoch,
    TopicPartition,
)
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import ClusterChange, ClusterState
from spark_kafkalite.registry.cluster.log_report_reads import LogReportReads
from spark_kafkalite.registry.cluster.registration import (
    RegistryEmptied,
    check_not_emptied,
    make_base_nodes_again,
)
from spark_kafkalite.registry.cluster.watcher import ClusterWatcher
from spark_kafkalite.registry.controller.elections import Chosen, Elections
from spark_kafkalite.registry.controller.last_resorts import LastResorts, Waited
from spark_kafkalite.registry.controller.lost_nodes import LostNodes
from spark_kafkalite.registry.controller.moves import AskedMove, Moves
from spark_kafkalite.registry.controller.old_tools import OldTools
from spark_kafkalite.registry.controller.preferred_leaders import LeaderBalance, out_of_balance
from spark_kafkalite.registry.controller.role import ControllerRole
from spark_kafkalite.registry.controller.topic_changes import TopicChanges
from spark_kafkalite.registry.controller.topic_plan import Extension, TopicSpec
from spark_kafkalite.registry.store import (
    ConnectionLoss,
    NoNode,
    SessionExpired,
    Store,
    WatchEvent,
    call_in_loop,
)
from spark_kafkalite.registry.znodes import TopicAssignment
from spark_kafkalite.slices import Slices, Work

__all__ = ["AskedMove", "Chosen", "Controller", "Extension", "TopicSpec"]

_LOG = logging.getLogger(__name__)

# Between two tries of a step that fails; each pause is twice the last one.
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 2.0
# The same where somebody waits for a connection that has broken.
_LONGEST_LOOK_S: Final = 0.2
# On top of a request's time, for the registry to answer what is asked of it at its end.
_SILENT_S: Final = 0.5
# How long a controller of a new session waits for brokers that may be about to register as well: in all, and since the
# last one came.
_GATHER_S: Final = 1.0
_GATHER_QUIET_S: Final = 0.3
# How often to see whether topics have their guards, those to be deleted are gone, and what old tools have left.
_COMPLETED_EVERY_S: Final = 60.0
# Partitions whose in-sync replicas are looked through in one piece.
_LOOKED_AT_ONCE: Final = 1000


class Controller:
    """This session's candidacy for the role, and the role while it has it. Lives in the watcher's event loop."""

    def __init__(
        self,
        store: Store,
        watcher: ClusterWatcher,
        broker_id: BrokerId,
        clock: Clock = SYSTEM_CLOCK,
        *,
        unclean_election: Callable[[str], bool] = lambda _: False,
        recovery: Callable[[str], bool] = lambda _: False,
        min_insync: Callable[[str], int] = lambda _: 1,
        balance: LeaderBalance | None = None,
        slices: Slices | None = None,
    ) -> None:
        """``unclean_election`` returns whether a topic's ``unclean.leader.election.enable`` is on, ``recovery`` whether
        its best log leads where nothing is lost by that (``recovery``). ``min_insync`` returns with how many in-sync
        replicas its high watermark moves (``election``). ``balance``: when leaders go back to the preferred replicas
        (``preferred_leaders``), None for never. ``slices``: the long work of the running loop, its own when it is not
        shared."""
        self._loop = asyncio.get_running_loop()
        self._slices = slices or Slices(self._loop)
        self.role = ControllerRole(store, watcher.view, broker_id, clock, self._slices, self._wake)
        self._topics = TopicChanges(store, self._slices, self.role, clock)
        # Of every broker, whether it has the role or not: any may be asked why a partition has no leader.
        self.log_reports = LogReportReads(store, self._slices, self._reports_changed)
        self._old_tools = OldTools(store, clock)
        self._lost_nodes = LostNodes(store, self._slices, self.role)
        self._old_tools_at_s = 0.0
        self._last_resorts = LastResorts(self.log_reports, self._slices, self._wake)
        self._elections = Elections(
            store,
            self._slices,
            self.role,
            unclean_election,
            recovery,
            min_insync,
            self._last_resorts,
        )
        self._moves = Moves(store, self._slices, self.role, min_insync)
        self._store = store
        self._watcher = watcher
        self._broker_id = broker_id
        self._clock = clock
        self._working = asyncio.Lock()
        # Whether what a former controller has left is to be looked at, besides elections.
        self._may_be_unfinished = False
        # Until when it may be that others of the cluster have lost their sessions too.
        self._gather_until_s = 0.0
        self._balance = balance
        self._balance_timer: asyncio.TimerHandle | None = None
        self._balance_is_due = False
        # What the task waits for, who waits for the end of its first step, and how its steps have gone.
        self._wanted = asyncio.Event()
        self._registered = asyncio.Event()
        self._begun: asyncio.Future[None] | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._quiet = QuietLog.of_states(_LOG, self._loop.time)
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Controller(broker {self._broker_id}, {f'epoch {self.epoch}' if self.is_active else 'not active'})"

    @property
    def is_active(self) -> bool:
        """Whether this broker has the role, as far as it knows: its writes are checked all the same."""
        return self.role.is_active

    @property
    def epoch(self) -> ControllerEpoch:
        """The epoch under which this broker has the role, -1 when it has not."""
        return self.role.epoch

    async def start(self) -> None:
        """Try to get the role and, with it, bring every partition into order. The watcher must have started.

        Returns once that has been tried; what a broken connection has kept from it is done later. Raises RegistryError.
        """
        loop = asyncio.get_running_loop()
        self._watcher.view.add_listener(self._on_change)
        self._gather_until_s = loop.time() + _GATHER_S
        self._begun = loop.create_future()
        self._wanted.set()
        self._task = loop.create_task(self._work())
        try:
            await asyncio.shield(self._begun)
        finally:
            self._begun = None

    def resume(self) -> None:
        """Go on with what a broken connection may have interrupted: claim the role, or check everything (R13)."""
        self._may_be_unfinished = True
        self.check_everything()

    def check_everything(self) -> None:
        """Look for partitions that need a leader: what the registry had no room for may succeed now."""
        self._look_at_everything()
        self._pause_s = _FIRST_PAUSE_S
        self._wanted.set()

    async def close(self) -> None:
        """Give up the role, so that the next broker has it at once; with its session, if that has ended."""
        self._watcher.view.remove_listener(self._on_change)
        self._last_resorts.close()
        if self._balance_timer is not None:
            self._balance_timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.role.give_up()

    # The role -------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Do what is wanted, for as long as the session lasts."""
        while True:
            try:
                async with asyncio.timeout(_COMPLETED_EVERY_S):
                    await self._wanted.wait()
            except TimeoutError:
                # Nobody watches the nodes that stand beside the topics; somebody may have removed one.
                self._may_be_unfinished = True
            self._wanted.clear()
            error: BaseException | None = None
            try:
                await self._step()
                self._pause_s = _FIRST_PAUSE_S
            except asyncio.CancelledError:
                self._tell_begun(SessionExpired("the candidacy has ended"))
                raise
            except NotController:
                # Whoever has the role now, or the end of that, is seen by the watcher; it may have been seen already.
                self._wanted.set()
            except SessionExpired as ended:
                self._tell_begun(ended)
                return
            except (KafkaError, RegistryError) as failed:
                error = failed
                reason = await self._reason_of(failed)
                text = "the controller's work failed; it is tried again until it succeeds: %s"
                self._quiet.log(logging.WARNING, "failed", text, reason, news=str(reason))
            except Exception as unforeseen:
                error = unforeseen
                _LOG.exception("the controller's work failed; it is tried again in %.2f s", self._pause_s)
            self._tell_begun(None if isinstance(error, ConnectionLoss) else error)
            if error is not None:
                self._may_be_unfinished = True
                self._look_at_everything()
                self._wanted.set()
                if isinstance(error, NoNode):
                    await make_base_nodes_again(self._store)
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    async def _reason_of(self, failed: Exception) -> Exception:
        """Return what the log names as the reason of a failure."""
        if isinstance(failed, NoNode):
            try:
                await check_not_emptied(self._store)
            except RegistryEmptied as emptied:
                return emptied
            except RegistryError:
                pass
        return failed

    def _tell_begun(self, error: BaseException | None) -> None:
        begun = self._begun
        if begun is None or begun.done():
            return
        if error is None:
            begun.set_result(None)
        else:
            begun.set_exception(error)

    async def _step(self) -> None:
        if not self.is_active:
            if not await self.role.take():
                if self._watcher.view.state.controller_id == znodes.NO_LEADER:
                    # Seen gone before it is seen at all, it would never be news that nobody has the role.
                    self._call_later(self._pause_s)
                return
            _LOG.info("broker %d is the controller, epoch %d", self._broker_id, self.epoch)
            self._old_tools_at_s = asyncio.get_running_loop().time() + _COMPLETED_EVERY_S
            self._may_be_unfinished = True
            self._look_at_everything()
            self._balance_later()
            await self._gather()
        if self._may_be_unfinished:
            # Before: a topic may be marked meanwhile.
            self._may_be_unfinished = False
            async with self._working:
                if await self._topics.finish_deletions(self._topic_marked):
                    self._may_be_unfinished = True
                    self._wanted.set()
                state = await self._watcher.caught_up()
                await self._topics.complete_guards(state)
                if state.topics_without_id:
                    await self.log_reports.read()
                    await self._topics.put_ids_back(state, partial(self.log_reports.topic_ids, state))
        if (now_s := asyncio.get_running_loop().time()) >= self._old_tools_at_s:
            self._old_tools_at_s = now_s + _COMPLETED_EVERY_S
            await self._old_tools.look()
            async with self._working:
                await self._lost_nodes.look(await self._watcher.caught_up())
        while self.is_active and self._elections.are_due:
            async with self._working:
                await self._elections.run(await self._watcher.caught_up())
        # The elections have caught up with the registry; what they have not seen is news, and looked at again.
        if self.is_active and self._moves.are_due and self._moves.have_begun(self._watcher.view.state):
            async with self._working:
                await self._moves.run(await self._watcher.caught_up())
            # It is done again where a state was written meanwhile, and after the elections that have become due.
            if self._moves.are_due:
                self._call_later(_FIRST_PAUSE_S)
        if self._balance_is_due:
            await self._balance_leaders()

    def _look_at_everything(self) -> None:
        self._elections.look_at_everything()
        self._moves.look_at_everything()

    def _balance_later(self) -> None:
        """Look for brokers that are out of balance when the interval is over, which begins with the role."""
        if self._balance_timer is not None:
            self._balance_timer.cancel()
        if self._balance is not None:
            self._balance_timer = self._loop.call_later(self._balance.interval_s, self._balance_now)

    def _balance_now(self) -> None:
        if self.is_active:
            self._balance_is_due = True
            self._wanted.set()
            self._balance_later()

    async def _balance_leaders(self) -> None:
        """Have preferred replicas lead again. What changes meanwhile is left to the next time."""
        assert self._balance is not None
        self._balance_is_due = False
        async with self._working:
            state = await self._watcher.caught_up()
            found = await self._slices.run(out_of_balance(state, self._balance.percentage))
            for broker_id, partitions in found.items():
                _LOG.info(
                    "broker %d is to lead %d partitions again, of which it is the preferred replica",
                    broker_id,
                    len(partitions),
                )
            await self._elections.run_preferred([each for some in found.values() for each in some], state)

    def _topic_marked(self, _: WatchEvent) -> None:
        """Obey a tool that has marked a topic for deletion at once: until then the topic takes records that go with it.
        In any thread; the controller's own markers are gone when its turn comes."""

        def look() -> None:
            if self.is_active:
                self._may_be_unfinished = True
                self._wanted.set()

        call_in_loop(self._loop, look)

    def _wake(self) -> None:
        self._wanted.set()

    def _reports_changed(self) -> None:
        if self.is_active and self._watcher.view.state.topics_without_id:
            self._may_be_unfinished = True
            self._wanted.set()
        self._last_resorts.look_again()

    def _call_later(self, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._wanted.set)

    async def _gather(self) -> None:
        """Wait for brokers that are about to register, if this session is as new as theirs would be.

        After an outage of the registry that was longer than the sessions, every broker registers again, with the logs
        that it had: nothing need change. The first one would otherwise elect itself for all partitions, and shrink
        their ISRs to the brokers that it has seen by then. A controller of an older session knows that only some have
        gone.
        """
        loop = asyncio.get_running_loop()
        while (now_s := loop.time()) < self._gather_until_s:
            state = await self._watcher.caught_up()
            if not await self._slices.run(_misses_somebody(state)):
                return
            self._tell_begun(None)
            self._registered.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_GATHER_QUIET_S, self._gather_until_s - now_s)):
                    await self._registered.wait()
                    continue
            return

    # Elections --------------------------------------------------------------------------------------------------------

    def _on_change(self, old: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        if change.new_brokers or change.bounced_brokers:
            self._registered.set()
        if self.is_active and old.controller_id != new.controller_id != self._broker_id:
            # Somebody has removed this broker's node, or put another one in its place. Which controllers came between
            # cannot be seen here: the registry says whether this broker has the role, and lets it have a free one.
            self.role.resign()
            self._wanted.set()
        if self.is_active:
            self._elections.look_at_changes(old, new, change)
            self._moves.look_at_changes(old, new, change)
            self._last_resorts.look_again()
            if new.topics_without_id - old.topics_without_id:
                self._may_be_unfinished = True
                self._wanted.set()
            if self._elections.are_due or self._moves.are_due:
                self._wanted.set()
        elif new.controller_id == znodes.NO_LEADER:
            self._wanted.set()

    async def elect_leaders(
        self,
        partitions: Sequence[TopicPartition] | None,
        *,
        timeout_s: float | None = None,
        unclean: bool = False,
        chosen: Mapping[TopicPartition, Chosen] = MappingProxyType({}),
    ) -> dict[TopicPartition, KafkaError | None]:
        """Have the first replica of each partition lead, or, ``unclean``, the one with the best log, or the ``chosen``
        one, although it may lack records. That waits first for what the live replicas report (``last_resorts``).

        Of all partitions, if None is given, those are left out that need no election. Gives each one's error, None for
        success, when this broker's view shows the outcome. Raises as :meth:`_turn`.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        waited: Waited = {}
        if unclean:
            waited = await self._wait_for_reports(partitions, timeout_s)
        left_s = None if timeout_s is None else max(began_s + timeout_s - loop.time(), _FIRST_PAUSE_S)
        async with self._turn(left_s) as state:
            results = await self._elections.run_asked(
                partitions, state, self._current_state, unclean=unclean, chosen=chosen, waited=waited
            )
        await self._watcher.caught_up()
        return results

    async def _wait_for_reports(self, partitions: Sequence[TopicPartition] | None, timeout_s: float | None) -> Waited:
        """Wait for the reports that an unclean election uses, while others have their turns. Raises as
        :meth:`_turn`."""
        try:
            # It says by itself what is missing after that time; the registry may be silent.
            async with asyncio.timeout(None if timeout_s is None else timeout_s + _SILENT_S):
                await self._current_state()
                return await self._last_resorts.wait(partitions, lambda: self._watcher.view.state, timeout_s)
        except TimeoutError as error:
            raise RequestTimedOut(f"the registry has not answered within {timeout_s} s; nothing was elected") from error

    # Topics -----------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[TopicSpec], *, timeout_s: float | None = None, validate_only: bool = False
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Create topics with their leaders elected; give each one's assignment, or the error that it met.

        Brokers see them a moment later (``ClusterView.wait_for``). Raises as :meth:`_turn`.
        """
        async with self._turn(timeout_s) as state:
            return await self._topics.create(topics, state, validate_only=validate_only)

    async def extend_topics(
        self, extensions: Sequence[Extension], *, timeout_s: float | None = None, validate_only: bool = False
    ) -> dict[str, TopicAssignment | KafkaError]:
        """Give topics more partitions, with leaders elected; return each one's assignment, or the error that it met.

        Raises as :meth:`_turn`.
        """
        async with self._turn(timeout_s) as state:
            return await self._topics.extend(extensions, state, validate_only=validate_only)

    async def delete_topics(
        self, names: Sequence[str], *, timeout_s: float | None = None
    ) -> dict[str, KafkaError | None]:
        """Remove topics from the registry; brokers remove the data when they see it. Raises as :meth:`_turn`."""
        async with self._turn(timeout_s) as state:
            return await self._topics.delete(names, state)

    async def reassign(
        self, asked: Sequence[AskedMove], *, timeout_s: float | None = None, allows_other_factor: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin, replace or cancel reassignments (``reassignment``); each partition is named once. The controller ends
        them by itself.

        Gives each one's error, None for success, when this broker's view shows the outcome. Raises as :meth:`_turn`.
        """
        async with self._turn(timeout_s) as state:
            results = await self._moves.ask(asked, state, self._current_state, allows_other_factor=allows_other_factor)
        await self._watcher.caught_up()
        self._wanted.set()
        return results

    @contextlib.asynccontextmanager
    async def _turn(self, timeout_s: float | None) -> AsyncIterator[ClusterState]:
        """Have one change at a time, each of what all before it have made.

        Raises NotController (41), RegistryError. Raises RequestTimedOut (7) when the turn has not come, or the registry
        has not answered, after ``timeout_s``, such as while it is unavailable: then nothing is written, now or later.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._working.acquire()
                try:
                    state = await self._current_state()
                except BaseException:
                    self._working.release()
                    raise
        except TimeoutError as error:
            raise RequestTimedOut(
                f"the registry has not answered within {timeout_s:g} s, or other changes took as long; nothing was "
                "changed"
            ) from error
        try:
            yield state
        finally:
            self._working.release()

    async def _current_state(self) -> ClusterState:
        """Return what all writes up to now have made. Raises NotController (41), RegistryError.

        A connection that breaks and is back before the session could have ended costs time only: no part of the request
        has been written yet.
        """
        loop, pause_s = asyncio.get_running_loop(), _FIRST_PAUSE_S
        until_s = loop.time() + self._store.session_timeout_ms / 1000
        while True:
            if not self.is_active:
                raise NotController(f"broker {self._broker_id} is not the controller")
            try:
                return await self._watcher.caught_up()
            except ConnectionLoss:
                if loop.time() + pause_s > until_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_LOOK_S)


def _misses_somebody(state: ClusterState) -> Work[bool]:
    """Return whether a broker is not registered that is in sync with, or leads, some partition."""
    for topic in state.topics.values():
        for number, partition in topic.partitions.items():
            if not all(member in state.brokers for member in partition.isr):
                return True
            if number % _LOOKED_AT_ONCE == 0:
                yield None
        yield None
    return False
