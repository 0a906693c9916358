"""Which replica an unclean election takes, and what that loses. Pure: a state, the live brokers and reports in.

The best log is the one with the largest (leader epoch of its last record, end offset, whole before damaged), by the
reports of the replicas' brokers (``report_nodes``). A log that ends later under the same epoch contains the others: one
leader wrote them. One with a later epoch has what was written last, whatever its length.

The log of a replica that has not reported is unknown: it comes behind those whose logs have records, and before those
that have none. Where logs are equal, or no replica has reported, members of the ISR come first, then eligible replicas,
then others, each in replica order. An offline log cannot be led with, so its broker is not taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.report_nodes import EMPTY, MISSING, OFFLINE, LogReport, reporting_brokers

Logs = Mapping[BrokerId, LogReport]

_HAS_NOTHING, _NOT_REPORTED, _HAS_RECORDS = range(3)


def best_log(state: PartitionState, live: Mapping[int, BrokerInfo], logs: Logs) -> BrokerId | None:
    """Return the replica that an unclean election takes, by the reports that count; None when no replica can lead."""
    best: BrokerId | None = None
    for broker in by_likely_loss(state, live):
        report = logs.get(broker)
        if report is not None and report.gone == OFFLINE:
            continue
        if best is None or _rank(report) > _rank(logs.get(best)):
            best = broker
    return best


def _rank(report: LogReport | None) -> tuple[int, int, int, bool]:
    if report is None:
        return _NOT_REPORTED, 0, 0, False
    if not report.has_records:
        return _HAS_NOTHING, 0, 0, False
    return _HAS_RECORDS, report.last_epoch, report.end_offset, not report.damaged


def by_likely_loss(state: PartitionState, live: Mapping[int, BrokerInfo]) -> Iterator[BrokerId]:
    """Yield the live replicas, each once: members of the ISR, eligible ones, others, each in replica order."""
    reporting = set(reporting_brokers(state, live))
    seen: set[BrokerId] = set()
    for group in (state.isr, state.eligible, state.replicas):
        for replica in state.replicas:
            if replica in group and replica in reporting and replica not in seen:
                seen.add(replica)
                yield replica


def lost_records(leader: LogReport, other: LogReport, deleted_below: int = 0) -> tuple[int, bool]:
    """Return how many records ``other`` has that are not in the log of ``leader``, and whether that is exact.

    Records below the offset ``deleted_below`` do not count: they were deleted, though not in all logs yet.
    Two logs are equal up to where the smaller of their last epochs ends in either (KIP-101). The reports have the last
    epochs only; where they do not reach back so far, the count is the most that can be lost.
    """
    if not other.has_records:
        return 0, True
    start = max(other.log_start_offset, deleted_below, 0)
    common, exact = _common_end(leader, other) if leader.has_records else (0, True)
    lost = max(other.end_offset - max(common, start), 0)
    # Behind the leader's end it has nothing, whatever the epochs say.
    return lost, exact or not lost or start >= leader.end_offset


def _common_end(one: LogReport, other: LogReport) -> tuple[int, bool]:
    """Return up to where two logs are equal, and whether the reports show it; (0, False) when they do not."""
    if one.last_epoch == other.last_epoch:
        return min(one.end_offset, other.end_offset), True
    epoch = min(one.last_epoch, other.last_epoch)
    while True:
        found, others = _floor(epoch, one), _floor(epoch, other)
        if found is None or others is None:
            return 0, False
        if found[0] == others[0]:
            return min(found[1], others[1]), True
        epoch = min(found[0], others[0])


def _floor(epoch: int, log: LogReport) -> tuple[int, int] | None:
    """Return the largest epoch of a log at or below this one, and where it ends; None where the report does not have
    it."""
    end = log.end_offset
    for known, start in reversed(log.epochs):
        if known <= epoch:
            return known, end
        end = start
    # Nothing lies before offset 0.
    return (-1, 0) if log.epochs and end == 0 else None


def told_losses(state: PartitionState, live: Mapping[int, BrokerInfo], logs: Logs, leader: BrokerId) -> list[str]:
    """Return what is lost, or may be, when ``leader`` leads; empty when every replica has reported and has no more."""
    mine = logs.get(leader)
    told = []
    if mine is None:
        told.append(f"broker {leader} has not reported what it has")
    deleted_below = max((report.log_start_offset for report in logs.values()), default=-1)
    by_loss: dict[tuple[int, bool], list[BrokerId]] = {}
    for broker in dict.fromkeys((*state.replicas, *state.isr, *state.eligible)):
        if broker == leader:
            continue
        report = logs.get(broker)
        if report is None:
            told.append(f"broker {broker} has not reported" if broker in live else f"broker {broker} is not registered")
        elif report.gone == OFFLINE:
            told.append(f"the log of broker {broker} is offline")
        elif mine is not None:
            lost, exact = lost_records(mine, report, deleted_below)
            if lost:
                by_loss.setdefault((lost, exact), []).append(broker)
    if mine is not None and mine.damaged:
        told.append(f"the log of broker {leader} is damaged: it lacks offsets {_ranges(mine)}")
    if mine is not None and mine.end_offset < deleted_below:
        told.append(f"new records get offsets {mine.end_offset} to {deleted_below - 1} again, which were deleted")
    told += _lost_everywhere(logs)
    return [_loss(lost, exact, brokers) for (lost, exact), brokers in by_loss.items()] + told


def _lost_everywhere(logs: Logs) -> list[str]:
    """Return what was committed and lies behind the end of every log that has reported."""
    committed = max((report.high_watermark for report in logs.values()), default=0)
    end = max((report.end_offset for report in logs.values()), default=0)
    if committed <= end:
        return []
    hint = "; files that end in .torn may have them" if any(report.damaged for report in logs.values()) else ""
    return [
        f"no log has offsets {end} to {committed - 1}, which were committed: a replica remembers the high watermark "
        f"{committed}{hint}"
    ]


def _loss(lost: int, exact: bool, brokers: list[BrokerId]) -> str:
    records = "record" if lost == 1 else "records"
    have = "has" if len(brokers) == 1 else "have"
    return f"loses {'' if exact else 'up to '}{lost:,} {records} that {named_brokers(brokers)} {have}"


def named_brokers(brokers: Iterable[BrokerId]) -> str:
    """Name brokers in a sentence."""
    *first, last = brokers
    return f"brokers {', '.join(map(str, first))} and {last}" if first else f"broker {last}"


def told_log(report: LogReport | None) -> str:
    """Return what a log has, in a few words."""
    if report is None:
        return "has not reported its log"
    if report.gone:
        return {MISSING: "has no log", EMPTY: "has an empty log", OFFLINE: "has its log offline"}[report.gone]
    if not report.end_offset:
        return "has an empty log"
    if report.is_emptied:
        return f"has a log without records that starts and ends at {report.end_offset}"
    damage = f", damaged at offsets {_ranges(report)}" if report.damaged else ""
    return f"has a log that ends at {report.end_offset} under leader epoch {report.last_epoch}{damage}"


def _ranges(report: LogReport) -> str:
    return ", ".join(f"{start} to {end - 1}" for start, end in report.damaged)


def told_reasons(state: PartitionState, live: Mapping[int, BrokerInfo], logs: Logs) -> list[str]:
    """Return for each replica that may lead, or that has records, why it does not lead by itself."""
    told = []
    for broker in dict.fromkeys((*state.replicas, *state.isr, *state.eligible)):
        may_lead = broker in state.isr or broker in state.eligible
        was = "was in sync" if broker in state.isr else "may lead" if may_lead else "was not in sync"
        if state.names_nobody:
            was = "unknown whether it was in sync: the partition's registry node was missing"
        registered = live.get(broker)
        if registered is None:
            told.append(f"broker {broker} ({was}) is not registered")
            continue
        named = state.incarnations.get(broker, state.eligible.get(broker, UNKNOWN_INCARNATION))
        if may_lead and not registered.has_log_of(named):
            was += ", has not proven that its log is whole"
        told.append(f"broker {broker} ({was}) {told_log(logs.get(broker))}")
    return told


def told_remedy(key: TopicPartition, state: PartitionState, live: Mapping[int, BrokerInfo]) -> str:
    """Return what an operator has to do about a partition without a leader."""
    named = state.replicas if state.names_nobody else (*state.isr, *state.eligible)
    away = [each for each in dict.fromkeys(named) if each not in live]
    command = f"kafkalite cluster elect --unclean {key.topic}:{key.partition}"
    if not away:
        return command
    start = f"start {named_brokers(away)}"
    if next(by_likely_loss(state, live), None) is None:
        return start
    return f"{start}; where {'it is' if len(away) == 1 else 'they are'} lost for good: {command}"
