"""Elections of the best log wait for what the replicas report of their logs; everything else goes on.

An election that loses records is to lose as few as can be (``best_log``), so it waits until every live replica has
reported its log for the present state (``report_nodes``). The controller asks no broker (rule R9): it reads the nodes
that brokers write by themselves while a partition has no leader. A broker that does not report in time, as one of an
earlier version, costs the ten seconds, and is logged. An election that loses nothing (``recovery``) waits for all
replicas, however long that takes.

Two kinds of callers have this in common:

- the settings (``unclean.leader.election.enable``, ``unclean.recovery.strategy``): :meth:`LastResorts.want` notes a
  partition, and :meth:`LastResorts.due` gives those whose time has come;
- an operator's request: :meth:`LastResorts.wait` returns when what was asked for can be elected.

Nothing here writes. A partition's deadline is that of its state: a later state starts a new wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from spark_kafkalite.errors import RequestTimedOut
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, PartitionState
from spark_kafkalite.registry.cluster.log_report_reads import LogReportReads
from spark_kafkalite.registry.controller.best_log import best_log, told_log, told_losses
from spark_kafkalite.registry.controller.election import elect, needs_election
from spark_kafkalite.registry.controller.recovery import why_not_recovered
from spark_kafkalite.registry.report_nodes import LogReport, reporting_brokers
from spark_kafkalite.registry.store import Check
from spark_kafkalite.registry.znodes import NO_LEADER
from spark_kafkalite.slices import Slices, Work

_LOG: Final = logging.getLogger(__name__)

# How long an unclean election waits for the reports of the live replicas.
REPORTS_WITHIN_S: Final = 10.0
_LOOKED_AT_ONCE: Final = 200
_NAMED: Final = 5

# Of a state: its node's creation and version, and whether it names a leader.
_Identity = tuple[int, int, bool]
# Partitions whose reports were waited for until the time was over, with the state that they had.
Waited = Mapping[TopicPartition, _Identity]


class Due(NamedTuple):
    """A partition that is to be elected now, under this state: uncleanly, or without losing anything."""

    key: TopicPartition
    state: PartitionState
    unclean: bool


class _Wanted(NamedTuple):
    """The state that is waited for, and until when; without a time where nothing may be lost."""

    state: PartitionState
    unclean: bool
    until_s: float


class LastResorts:
    """See the module's text. Lives in the controller's event loop."""

    def __init__(self, reads: LogReportReads, slices: Slices, wake: Callable[[], None]) -> None:
        """``wake`` is called when :meth:`due` is to be asked again."""
        self._reads = reads
        self._slices = slices
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        # Partitions whose settings allow such elections.
        self._wanted: dict[TopicPartition, _Wanted] = {}
        self._look = False
        self._timer: asyncio.TimerHandle | None = None
        # Requests that wait for reports.
        self._waiting: set[asyncio.Event] = set()

    @property
    def are_due(self) -> bool:
        """Whether :meth:`due` may give something that it has not given before."""
        return self._look and bool(self._wanted)

    def look_again(self) -> None:
        """Take note that brokers, states or reports have changed."""
        for each in self._waiting:
            each.set()
        if self._wanted:
            self._look = True
            self._wake()

    def logs(self, key: TopicPartition, state: PartitionState, cluster: ClusterState) -> dict[BrokerId, LogReport]:
        """Return the reports of a partition that count, as they were last read."""
        return self._reads.counted(key, state, cluster.brokers)

    async def read(self) -> None:
        """Read what has been reported up to now. Raises RegistryError."""
        await self._reads.read()

    # By the settings ------------------------------------------------------------------------------------------------

    def want(self, key: TopicPartition, state: PartitionState, *, unclean: bool) -> None:
        """Have an election of a partition under this state as soon as its reports have arrived; if not ``unclean``,
        once they show that it loses nothing."""
        known = self._wanted.get(key)
        if known is None or known.unclean != unclean or _identity(known.state) != _identity(state):
            self._wanted[key] = _Wanted(state, unclean, self._loop.time() + REPORTS_WITHIN_S if unclean else math.inf)
        self._look = True

    def relied_on(
        self, key: TopicPartition, state: PartitionState, cluster: ClusterState
    ) -> tuple[dict[BrokerId, LogReport], tuple[Check, ...]] | None:
        """Return the reports by which the best log may lead without an operator (R18), and the checks for the write;
        None when they do not allow it."""
        logs = self.logs(key, state, cluster)
        if why_not_recovered(state, cluster.brokers, logs):
            return None
        return logs, self._reads.checks(key)

    async def due(self, cluster: ClusterState) -> list[Due]:
        """Return the partitions that are to be elected now, with their states in ``cluster``. Raises RegistryError."""
        if not self._wanted:
            return []
        self._look = False
        try:
            await self._reads.read()
        except BaseException:
            self._look = True
            raise
        return await self._slices.run(self._due(cluster))

    def _due(self, cluster: ClusterState) -> Work[list[Due]]:
        found = []
        now_s, next_s = self._loop.time(), None
        for index, (key, (wanted, unclean, until_s)) in enumerate(list(self._wanted.items())):
            if index % _LOOKED_AT_ONCE == 0:
                yield None
            state = cluster.partition(key)
            if state is None or _identity(state) != _identity(wanted):
                # Its state is looked at by itself.
                del self._wanted[key]
                continue
            if not unclean:
                if self.relied_on(key, state, cluster) is not None:
                    del self._wanted[key]
                    found.append(Due(key, state, unclean))
                continue
            missing = self._missing(key, state, cluster)
            if missing and until_s == math.inf:
                until_s = now_s + REPORTS_WITHIN_S
                self._wanted[key] = _Wanted(wanted, unclean, until_s)
            if missing and now_s < until_s:
                next_s = until_s if next_s is None else min(next_s, until_s)
            elif best_log(state, cluster.brokers, self.logs(key, state, cluster)) is not None:
                del self._wanted[key]
                found.append(Due(key, state, unclean))
            else:
                # All logs are offline. One may come back: that is waited for anew, and no epoch is used up until then.
                self._wanted[key] = _Wanted(wanted, unclean, math.inf)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if next_s is None else self._loop.call_at(next_s, self.look_again)
        return found

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._wanted.clear()

    # On request -----------------------------------------------------------------------------------------------------

    async def wait(
        self,
        partitions: Sequence[TopicPartition] | None,
        cluster: Callable[[], ClusterState],
        timeout_s: float | None,
    ) -> Waited:
        """Wait until the live replicas of these partitions (None: of all) have reported, as far as they need an unclean
        election; at most ten seconds. Return those for which that time is over.

        ``cluster`` gives the present snapshot. Raises RegistryError; RequestTimedOut (7) when reports are missing after
        ``timeout_s``, where that is less.
        """
        until_s = self._loop.time() + REPORTS_WITHIN_S
        gives_up_s = until_s if timeout_s is None else self._loop.time() + timeout_s
        news = asyncio.Event()
        self._waiting.add(news)
        try:
            while True:
                news.clear()
                await self._reads.read()
                missing = await self._slices.run(self._all_missing(partitions, cluster()))
                now_s = self._loop.time()
                if not missing or now_s >= until_s:
                    return {key: identity for key, (identity, _) in missing.items()}
                if now_s >= gives_up_s:
                    raise RequestTimedOut(
                        f"not all logs are known after {timeout_s:g} s, so nothing was elected: "
                        f"{_some([text for _, text in missing.values()])}; try again with a timeout of more than "
                        f"{REPORTS_WITHIN_S:g} s"
                    )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(min(until_s, gives_up_s)):
                        await news.wait()
        finally:
            self._waiting.discard(news)

    def _all_missing(
        self, partitions: Sequence[TopicPartition] | None, cluster: ClusterState
    ) -> Work[dict[TopicPartition, tuple[_Identity, str]]]:
        """Return of which partitions reports are missing, under which state, and which."""
        keys: Iterable[TopicPartition] = partitions or ()
        if partitions is None:
            keys = (
                TopicPartition(name, number) for name, topic in cluster.topics.items() for number in topic.partitions
            )
        found = {}
        for index, key in enumerate(keys):
            if index % _LOOKED_AT_ONCE == 0:
                yield None
            state = cluster.partition(key)
            if state is None or not state.has_state or not needs_election(state, cluster.brokers):
                continue
            if elect(state, cluster.brokers).leader != NO_LEADER:
                continue
            if state.leader != NO_LEADER:
                found[key] = _identity(state), f"{key} still has broker {state.leader} as its leader in the registry"
            elif missing := self._missing(key, state, cluster):
                found[key] = _identity(state), f"{key} by broker {', '.join(map(str, missing))}"
        return found

    def check_known(self, key: TopicPartition, state: PartitionState, cluster: ClusterState, waited: Waited) -> None:
        """Raise RequestTimedOut (7) where reports are missing and the wait was for an earlier state."""
        if waited.get(key) != _identity(state) and self._missing(key, state, cluster):
            raise RequestTimedOut(f"{key} has changed while its replicas were asked what their logs have; try again")

    def _missing(self, key: TopicPartition, state: PartitionState, cluster: ClusterState) -> list[BrokerId]:
        """Return the live brokers that are to report a log, and have not."""
        logs = self.logs(key, state, cluster)
        return [each for each in reporting_brokers(state, cluster.brokers) if each not in logs]


def tell(
    key: TopicPartition,
    state: PartitionState,
    cluster: ClusterState,
    logs: Mapping[BrokerId, LogReport],
    leader: BrokerId,
) -> None:
    """Write one WARNING about an unclean election: what leads, and what is lost or not known."""
    if not logs:
        _LOG.warning(
            "%s: broker %d is elected although its log is not known to be whole, and no replica has reported what it "
            "has: the first live one is taken, members of the ISR before others",
            key,
            leader,
        )
        return
    lost = "; ".join(told_losses(state, cluster.brokers, logs, leader)) or "no replica has more"
    _LOG.warning(
        "%s: broker %d is elected although its log is not known to be whole; it %s; %s",
        key,
        leader,
        told_log(logs.get(leader)),
        lost,
    )


def tell_of_recovery(
    key: TopicPartition, state: PartitionState, logs: Mapping[BrokerId, LogReport], leader: BrokerId
) -> None:
    """Write one WARNING about an election by rule R18: what leads, and what is known to be lost."""
    if state.names_nobody and not any(report.has_records or report.high_watermark for report in logs.values()):
        return  # nothing can be lost
    why = "no replica could prove its log, as after a power loss of all hosts"
    if state.names_nobody:
        why = "its registry node was missing"
    end = logs[leader].end_offset
    committed = max(report.high_watermark for report in logs.values())
    lost = f": {committed - end:,} committed records are on no disk any more" if committed > end else ""
    _LOG.warning(
        "%s: broker %d is elected: %s, all have reported, and none has more than this one; it %s; the highest high "
        "watermark that a replica remembers is %d%s",
        key,
        leader,
        why,
        told_log(logs[leader]),
        committed,
        lost,
    )


def _identity(state: PartitionState) -> _Identity:
    return state.created_zxid, state.version, state.leader == NO_LEADER


def _some(missing: Sequence[str]) -> str:
    return ", ".join(missing[:_NAMED]) + (" and more" if len(missing) > _NAMED else "")
