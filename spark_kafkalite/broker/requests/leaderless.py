"""Why a partition has no leader, what its replicas' logs have, and what to do: as an answer to an administrator.

Any broker answers that, from its snapshot of the cluster and what brokers have reported of their logs. It is a tagged
field of DescribeTopicPartitions that no other client knows, and is JSON::

    {"reason":TEXT,"remedy":TEXT,"leaderEpoch":N,"best":BROKER or null,
     "losses":{"BROKER":[TEXT,...]},
     "replicas":[{"broker":N,"registered":true,"lastEpoch":N,"endOffset":N,"damaged":[[START,END],...],"gone":""}]}

``best`` is the replica that an unclean election takes, ``losses`` lists for each live replica what is lost if that one
leads. A replica that has not reported has no ``lastEpoch`` and no ``endOffset``.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.errors import RegistryError
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import ClusterState, PartitionState
from spark_kafkalite.registry.cluster.log_report_reads import LogReportReads
from spark_kafkalite.registry.controller.best_log import (
    Logs,
    best_log,
    by_likely_loss,
    told_losses,
    told_reasons,
    told_remedy,
)
from spark_kafkalite.registry.controller.election import elect, needs_election
from spark_kafkalite.registry.controller.recovery import why_not_recovered
from spark_kafkalite.registry.znodes import NO_LEADER, state_path
from spark_kafkalite.slices import Work

# How long the registry may take; where it is away the reports are left out.
_READ_WITHIN_S: Final = 2.0
_UNREAD: Final = "what the replicas' logs have is not known: the registry does not answer this broker"


def is_leaderless(state: PartitionState, cluster: ClusterState) -> bool:
    """Return whether a partition has no leader, and gets none without an unclean election."""
    if state.unreadable or state.epochs_are_used_up:
        return True
    return (
        state.has_state and needs_election(state, cluster.brokers) and elect(state, cluster.brokers).leader == NO_LEADER
    )


def read_reports(context: BrokerContext) -> Work[LogReportReads | None]:
    """Return what brokers have reported up to now; None where the registry does not answer."""
    try:
        reads = context.membership.session.controller.log_reports
    except RegistryError:
        return None
    reading = asyncio.ensure_future(_read_in_time(reads))
    try:
        yield reading
    except GeneratorExit:
        reading.cancel()
        raise
    error = reading.exception()
    if error is None:
        return reads
    if not isinstance(error, (RegistryError, TimeoutError)):
        raise error
    return None


async def _read_in_time(reads: LogReportReads) -> None:
    async with asyncio.timeout(_READ_WITHIN_S):
        await reads.read()


def why_leaderless(
    key: TopicPartition, state: PartitionState, cluster: ClusterState, reads: LogReportReads | None, *, recovers: bool
) -> str:
    """Return the field of a partition without a leader. ``recovers``: its best log leads by itself where nothing is
    lost by that."""
    live = cluster.brokers
    logs: Logs = {} if reads is None else reads.counted(key, state, live)
    losses = {str(each): told_losses(state, live, logs, each) for each in by_likely_loss(state, live)}
    if state.unreadable or state.epochs_are_used_up:
        path = state_path(*key)
        reason = f"registry node {path} cannot be read" if state.unreadable else f"{path} has the last leader epoch"
        remedy = f"write what registry node {path} should hold, or delete the topic"
    elif reads is None:
        # That no replica has reported would be false, and no leader is elected while the registry is away.
        reason, remedy = _UNREAD, "look again when the registry answers"
        losses = {each: [_UNREAD] for each in losses}
    else:
        kept = why_not_recovered(state, live, logs) if recovers else "unclean.recovery.strategy is None"
        reason = "; ".join((*told_reasons(state, live, logs), *([f"no log leads by itself: {kept}"] if kept else ())))
        remedy = told_remedy(key, state, live)
    return json.dumps(
        {
            "reason": reason,
            "remedy": remedy,
            "leaderEpoch": state.leader_epoch,
            "best": best_log(state, live, logs),
            "losses": losses,
            "replicas": [_replica(each, cluster, logs) for each in state.replicas],
        },
        separators=(",", ":"),
    )


def _replica(broker: BrokerId, cluster: ClusterState, logs: Logs) -> dict[str, Any]:
    fields: dict[str, Any] = {"broker": broker, "registered": broker in cluster.brokers}
    report = logs.get(broker)
    if report is not None:
        fields |= {
            "lastEpoch": report.last_epoch,
            "endOffset": report.end_offset,
            "damaged": [list(each) for each in report.damaged],
            "gone": report.gone,
        }
    return fields
