"""Which log a partition that this broker hosts has here: found or made, refused with the reason, or lost.

A log is of one topic id (rule R10): one of an older topic of the same name is set aside, never appended to. While a log
directory is offline an empty log is made only for a partition that is new: those of others may lie there. A log that is
gone is left to the replicas that had it, too; one that cannot be read is set aside where others go on without it; one
that is ahead of the registry is left alone.

Whether the partition is led or followed with its log is the business of ``replicas``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from spark_kafkalite.broker.replication.partition import PartitionServices
from spark_kafkalite.broker.replication.rules.leaving import others_with_log
from spark_kafkalite.errors import ConfigError, KafkaStorageError
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, PartitionState
from spark_kafkalite.registry.znodes import NO_LEADER, NO_TOPIC_ID, state_path, topic_path, uuid_text
from spark_kafkalite.slices import Turn

logger: Final = logging.getLogger(__name__)

# Logs that go out of use in one go, and share the sync of their directory.
RETIRED_AT_ONCE: Final = 500
_SHOWN_LOGS: Final = 10


class HostedLogs:
    """See the module's text."""

    def __init__(self, logs: LogManager, services: PartitionServices) -> None:
        self._logs = logs
        self._services = services
        self._me = BrokerId(services.broker_id)
        # Why partitions have no log that can be served.
        self.refused: dict[TopicPartition, KafkaStorageError] = {}
        # Logs that an earlier run of this broker had, or this one before it was no replica, and that are gone, with the
        # topic's id.
        self._lost: dict[TopicPartition, bytes] = {}

    def open(
        self, topic_partition: TopicPartition, topic_id: bytes, state: PartitionState, me: BrokerInfo
    ) -> PartitionLog | None:
        """Return the partition's log, an empty one if it is to have one; None when it is refused from now on.

        ``me`` is the broker's present registration.
        """
        log = self._logs.get(topic_partition)
        try:
            is_missed = log is None and not self._logs.knows(topic_partition) and not _is_new(state, me)
            if is_missed:
                self._logs.check_all_online(topic_partition)
            if log is not None and (why := _why_foreign(log, topic_id, state)):
                kept = self._logs.retiring.set_aside(topic_partition, awaits_topic=True)
                logger.warning("the log of %s %s; its files are kept in %s", topic_partition, why, kept)
            if self.has_lost(topic_partition, topic_id) and self._is_left_to_others(topic_partition, state):
                return None
            log = self._create(topic_partition, topic_id, state)
        except (KafkaStorageError, ConfigError) as error:
            self._refuse(topic_partition, str(error), logging.ERROR, f"{topic_partition} cannot be served: {error}")
            return None
        if is_missed:
            self._tell_of_missed(log, state)
        if not state.names_nobody and self._is_ahead(log, state):
            return None
        self.refused.pop(topic_partition, None)
        return log

    def is_to_be_made(
        self, topic_partition: TopicPartition, topic_id: bytes, state: PartitionState, me: BrokerInfo
    ) -> bool:
        """Return whether the partition is a new one, whose log :meth:`open` would simply make."""
        logs = self._logs
        return (
            _is_new(state, me)
            and not (logs.knows(topic_partition) or logs.awaits(topic_partition, topic_id))
            and topic_partition not in self._lost
            and topic_partition not in self.refused
        )

    def _create(self, topic_partition: TopicPartition, topic_id: bytes, state: PartitionState) -> PartitionLog:
        """Return the partition's log, opened or made. One that cannot be read is set aside to be copied again, if
        others go on without it: a registered broker leads, and the state means this one's log no more. Else it may be
        the only one that has something, and waits. Raises what ``LogManager.create`` does."""
        try:
            return self._logs.create(topic_partition, topic_id)
        except KafkaStorageError as error:
            leader = self._services.live_brokers().get(state.leader)
            if leader is None or leader.broker_id == self._me or not state.is_led_by(leader):
                raise
            if self._me in state.isr or self._me in state.eligible or not self._logs.is_unreadable(topic_partition):
                raise
            kept = self._logs.retiring.set_aside(topic_partition)
            logger.error(
                "%s: %s; its files are kept in %s, and it is copied again from its leader, broker %d",
                topic_partition, error, kept, state.leader,
            )  # fmt: skip
            return self._logs.create(topic_partition, topic_id)

    def refuse_for_state(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Give the partition no log, because no broker can lead it under the state that the registry has."""
        problem = "cannot be read" if state.unreadable else f"has the last leader epoch, {state.leader_epoch}"
        problem = f"{topic_partition} is offline: registry node {state_path(*topic_partition)} {problem}"
        # The watcher has said of what cannot be read what to do.
        remedy = "write a lower one that its log has not seen, or delete the topic"
        told = "" if state.unreadable else f"{problem}; {remedy}"
        self._refuse(topic_partition, problem, logging.ERROR, told)

    def refuse_without_id(self, topic_partition: TopicPartition) -> bool:
        """Serve no log that names its topic while the topic's node names no id; return whether there is one.

        Under another id it would be set aside.
        """
        log = self._logs.get(topic_partition)
        if log is None or log.topic_id is None or log.topic_id == NO_TOPIC_ID:
            return False
        path = topic_path(topic_partition.topic)
        problem = (
            f"{topic_partition} is offline: registry node {path} names no topic_id, and its log is that of topic "
            f"{uuid_text(log.topic_id)}; where the controller does not put that back, write it there"
        )
        self._refuse(topic_partition, problem, logging.WARNING, problem)
        return True

    def _refuse(self, topic_partition: TopicPartition, problem: str, level: int, told: str) -> None:
        """Clients receive ``problem``; ``told``, if it is not "", is logged once."""
        if told and topic_partition not in self.refused:
            logger.log(level, "%s", told)
        self.refused[topic_partition] = KafkaStorageError(problem)

    def has_lost(self, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        """Return whether the log of a partition is gone, and no other has been made yet."""
        return self._lost.get(topic_partition) == topic_id

    def left(self, topic_partition: TopicPartition, topic_id: bytes) -> None:
        """Note that the log of a partition is set aside because this broker is no replica any more: one that becomes a
        replica again while the state still has it in sync is not."""
        self._lost[topic_partition] = topic_id

    def _is_left_to_others(self, topic_partition: TopicPartition, state: PartitionState) -> bool:
        """Leave a partition whose log is gone to the replicas that had it, too; return whether there are such.

        What this broker proves of its logs (R12) is not so of this one: with an empty one it would be elected all the
        same. It makes one when the state names it no more.
        """
        others = others_with_log(state, self._me)
        topic_id = self._lost[topic_partition]
        if not others:
            del self._lost[topic_partition]
            return False
        problem = (
            f"{topic_partition} has no log here any more: it is left to brokers {', '.join(map(str, others))}, which "
            "had all that was acknowledged, and copied again"
        )
        self._refuse(topic_partition, problem, logging.WARNING, problem)
        self._services.on_log_lost(topic_partition, topic_id)
        return True

    def _tell_of_missed(self, log: PartitionLog, state: PartitionState) -> None:
        """Warn of a log that was made for a partition that should have had one."""
        if state.leader not in (self._me, NO_LEADER):
            logger.warning(
                "%s has no log in any log directory; it is copied from its leader, broker %d",
                log.topic_partition,
                state.leader,
            )
        elif not log.log_end_offset and self._me in state.isr:
            # A broker that is killed while it makes or removes a log leaves the same.
            logger.warning(
                "%s has no log in any log directory: unless it was being made or deleted when the broker was "
                "killed, whatever it held is lost; it begins at offset 0",
                log.topic_partition,
            )

    def _is_ahead(self, log: PartitionLog, state: PartitionState) -> bool:
        """Refuse a log that has a leader epoch that the registry has not given yet; return whether it has one.

        Batches of a lower epoch behind those of a higher one would be cut off by the next recovery. Nor is it left to
        others: where the registry is an older copy, they may be those that had dropped out of the ISR since.
        """
        if log.epochs.latest <= state.leader_epoch:
            return False
        problem = (
            f"{log.topic_partition} is offline: its log has leader epoch {log.epochs.latest}, the registry only "
            f"{state.leader_epoch}, so the registry is older than the log: stop "
        )
        if len(state.replicas) == 1:
            problem += "the broker, then restore the registry or have it completed by kafkalite registry rebuild"
        else:
            problem += (
                "all brokers, then restore the registry's newest data or have it completed by kafkalite cluster "
                "recover-registry; if the registry is right, and another broker has the records, stop this one and "
                f"move the log's directory {log.directory} away: it is copied again"
            )
        self._refuse(log.topic_partition, problem, logging.ERROR, problem)
        return True

    def report_failures(self, errors: Iterable[KafkaStorageError]) -> None:
        """Log what kept logs from going out of use."""
        for error in errors:
            logger.error("%s", error)

    def warn_of_vanished(self, kept: Mapping[TopicPartition, str]) -> None:
        """Warn once of logs that were set aside because their topics vanished; ``kept`` has where they are now."""
        if not kept:
            return
        shown = ", ".join(f"{key} (kept in {path})" for key, path in list(kept.items())[:_SHOWN_LOGS])
        more = f" and {len(kept) - _SHOWN_LOGS} more" if len(kept) > _SHOWN_LOGS else ""
        logger.warning(
            "%d logs are set aside, because the registry does not have their topics and the controller has not deleted "
            "them: %s%s; they are used again when a topic's node with the same topic id appears, and stay until you "
            "remove them",
            len(kept),
            shown,
            more,
        )

    async def compare(self, cluster: ClusterState, turn: Turn) -> None:
        """Delete, or set aside, logs that belong to no topic of the registry, and note those that are gone; called
        once, when the logs have been loaded.

        The registry is known to be these logs' by now, and to have lost nothing (``registry_evidence``). A topic whose
        node cannot be read keeps its logs where they are.
        """
        deleted: list[TopicPartition] = []
        vanished: list[TopicPartition] = []
        for topic_partition, loaded in list(self._logs.logs.items()):
            await turn.pause()
            if cluster.partition(topic_partition) is None and topic_partition.topic not in cluster.unreadable_topics:
                (deleted if cluster.has_deleted(loaded.topic_id) else vanished).append(topic_partition)
        for first in range(0, len(deleted), RETIRED_AT_ONCE):
            job = self._logs.retiring.start_deletion(deleted[first : first + RETIRED_AT_ONCE])
            job.run()
            self.report_failures(self._logs.retiring.finish_deletion(job))
            await turn.pause()
        kept: dict[TopicPartition, str] = {}
        for first in range(0, len(vanished), RETIRED_AT_ONCE):
            job = self._logs.retiring.start_setting_aside(vanished[first : first + RETIRED_AT_ONCE], awaits_topic=True)
            job.run()
            self.report_failures(self._logs.retiring.finish_setting_aside(job))
            kept |= {each.key: each.target for each in job.renamed}
            await turn.pause()
        self.warn_of_vanished(kept)
        # No state names this run yet: where one has this broker among those that have a log, an earlier run had it.
        for name, topic in cluster.topics.items():
            if topic.topic_id == NO_TOPIC_ID:
                continue
            for number, state in topic.partitions.items():
                await turn.pause()
                key = TopicPartition(name, number)
                log = self._logs.get(key)
                is_gone = not self._logs.knows(key) if log is None else _why_foreign(log, topic.topic_id, state)
                if self._logs.awaits(key, topic.topic_id):
                    continue
                if is_gone and others_with_log(state, self._me):
                    self._lost[key] = topic.topic_id


def _why_foreign(log: PartitionLog, topic_id: bytes, state: PartitionState) -> str:
    """Return why the log is not known to be of this topic; "" when it is."""
    if log.topic_id is not None and log.topic_id != topic_id:
        return "is that of an older topic of the same name"
    if log.topic_id is None and log.log_end_offset and len(state.replicas) > 1:
        # A power loss has taken the id; the topic may have been made again since (rule R10).
        return "does not say which topic of that name it is of; it is copied again from the other replicas"
    return ""


def _is_new(state: PartitionState, me: BrokerInfo) -> bool:
    """Return whether the partition has been created in this run of the broker.

    Only then does the state of its first epoch name this incarnation: that of an earlier one which had all logs, or the
    next epoch, is no new partition's.
    """
    if me.incarnation == UNKNOWN_INCARNATION:
        return False
    return state.leader_epoch == 0 and state.incarnations.get(me.broker_id) == me.incarnation
