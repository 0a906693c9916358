"""When a partition whose replicas cannot prove their logs needs no operator (rule R18). Pure: a state and reports in.

After a power loss of all hosts no log is proven (R12), and no replica leads by itself. An operator could wait for a
broker, a disk or a directory that is still missing. The wait brings nothing if every replica is present, with a log
that is sound as far as it goes, and one of the logs contains all others: that log leads, and no replica cuts anything
off.

A log contains another one if it has the other's last record: both are equal up to there (KIP-101). The leader epoch of
that record ends in the log at or behind the other's end then. Reports have the last epochs only; where the epoch is not
among them it is unknown, and an operator is asked.

A log whose records were all deleted starts where it ends, and may know no leader epoch any more. It has no record that
another log could lack, so each log that does not end before it contains it. Where the best log does end before it, an
operator is asked: which of the two is of the later leader is not known.

The best log has to be one that a member of the ISR, or an eligible replica, has. These had all that was committed, so
where another replica has more, they have come back with less than they had: perhaps with copies of earlier, and what
they had may lie on another disk.

A state that names no replica (``PartitionState.names_nobody``) does not show which replicas had it, or which leader
epochs there were. Then every replica may lead, whatever the epochs of the logs are: the next one is above all of them
(``election.next_epoch``). Where no replica has a record, or remembers one, the partition is new. Where there is only
one replica no other has more. These need no setting (:func:`needs_no_setting`).

An empty log is that of a new directory, too, so it counts for nothing next to logs that have records. Where all are
empty, and no replica remembers that anything was committed, one leads if the state names all replicas. A broker whose
log is gone leaves a state that names others as well, before it makes another log
(``broker.replication.hosted_logs.HostedLogs``). So all of these are the logs that they were.

Source: KIP-966 for the setting, unclean.recovery.strategy, and its default. There ``Balanced`` waits for answers, too,
and may lose records; here it never gives up what a replica has.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, PartitionState
from spark_kafkalite.registry.controller.best_log import Logs, best_log, told_log
from spark_kafkalite.registry.report_nodes import EMPTY, OFFLINE, LogReport


def why_not_recovered(state: PartitionState, live: Mapping[int, BrokerInfo], logs: Logs) -> str:
    """Return why the best of these logs does not lead without an operator; "" when it does.

    For a state that names no leader, where no log is proven. ``logs``: the reports that count.
    """
    may_lead = dict.fromkeys(state.replicas if state.names_nobody else (*state.isr, *state.eligible))
    brokers = dict.fromkeys((*state.replicas, *may_lead))
    for broker in brokers:
        if broker not in live:
            return f"broker {broker} is not registered"
        if broker not in logs:
            return f"broker {broker} has not reported its log"
    if state.names_nobody and needs_no_setting(state, logs):
        return ""
    if all(logs[each].gone == EMPTY for each in brokers):
        return _why_not_empty(state, logs)
    for broker in brokers:
        report = logs[broker]
        if not report.has_records or report.damaged:
            return f"broker {broker} {told_log(report)}"
        if report.last_epoch > state.leader_epoch and not state.names_nobody:
            return f"broker {broker} {told_log(report)}, and the registry knows of {state.leader_epoch} only"
    leader = best_log(state, live, logs)
    if leader is None:
        return "none of its replicas can lead"
    if leader not in may_lead:
        return f"broker {leader}, which was not in sync, has more than those that were"
    for broker in brokers:
        if not contains(logs[leader], logs[broker]):
            if logs[broker].is_emptied:
                return f"broker {broker} {told_log(logs[broker])}, behind the end of the log of broker {leader}"
            return f"broker {broker} may have records that broker {leader} has not"
    return ""


def needs_no_setting(state: PartitionState, logs: Logs) -> bool:
    """Return whether a partition whose state names no replica is led whatever ``unclean.recovery.strategy`` is: all its
    replicas have reported, and it has no record, or only one replica."""
    reports = [logs.get(each) for each in state.replicas]
    found = [each for each in reports if each is not None and each.gone != OFFLINE]
    if not state.names_nobody or len(found) < len(reports):
        return False
    return len(found) == 1 or not any(each.has_records or each.high_watermark or each.damaged for each in found)


def _why_not_empty(state: PartitionState, logs: Logs) -> str:
    for broker, report in logs.items():
        if report.high_watermark or report.damaged:
            return f"broker {broker} has an empty log, and had {report.high_watermark} records"
    if not state.isr or not {*state.isr, *state.eligible}.issuperset(state.replicas):
        return "all its logs are empty, and not all of its replicas were in sync"
    return ""


def contains(log: LogReport, other: LogReport) -> bool:
    """Return whether a log is known to have all that another one has, and not to end before it does."""
    if other.end_offset > log.end_offset:
        return False
    if other.is_emptied or other.last_epoch == log.last_epoch >= 0:
        return True
    ends = [start for _, start in log.epochs[1:]]
    return any(
        epoch == other.last_epoch and other.end_offset <= end for (epoch, _), end in zip(log.epochs, ends, strict=False)
    )
