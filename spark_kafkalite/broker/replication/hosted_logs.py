"""Opens or creates the logs of the partitions that this broker hosts, or refuses them with a reason.

A log belongs to one topic id (rule R10). The broker sets a log of an older topic with the same name aside, and never
appends to it. While a log directory is offline, the broker creates an empty log only for a new partition, because the
log of an older partition may be in the offline directory. There are three more cases:

- A log is missing. The broker leaves the partition to the other replicas that had its log, and copies the log again.
- A log is unreadable. The broker sets it aside if other replicas continue without it.
- A log has a newer leader epoch than the registry. The broker refuses it and does not change it.

``replicas`` decides whether this broker leads or follows a partition.
"""

from __future__ import annotations

import logging
from typing import Final

from spark_kafkalite.broker.replication.partition import PartitionServices
from spark_kafkalite.broker.replication.rules.leaving import others_with_log
from spark_kafkalite.errors import ConfigError, KafkaStorageError
from spark_kafkalite.log.files.small_files import PARTITION_METADATA_FILE
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import UNKNOWN_INCARNATION, BrokerId, TopicPartition
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterState, PartitionState
from spark_kafkalite.registry.znodes import NO_LEADER, NO_TOPIC_ID, state_path, topic_path, uuid_text
from spark_kafkalite.slices import Turn

logger: Final = logging.getLogger(__name__)


class HostedLogs:
    """The logs of hosted partitions, and the reasons of refused ones."""

    def __init__(self, logs: LogManager, services: PartitionServices) -> None:
        self._logs = logs
        self._services = services
        self._me = BrokerId(services.broker_id)
        # The reason for each partition without a log that can be served.
        self.refused: dict[TopicPartition, KafkaStorageError] = {}
        # Missing logs with the topic's id: an earlier run had them, or this run before the partition moved away.
        self._lost: dict[TopicPartition, bytes] = {}

    def open(
        self, topic_partition: TopicPartition, topic_id: bytes, state: PartitionState, me: BrokerInfo
    ) -> PartitionLog | None:
        """Return the partition's log, opened or created; None if the broker refuses the partition from now on.

        ``me`` is the broker's present registration.
        """
        log = self._logs.get(topic_partition)
        try:
            is_missed = log is None and not self._logs.knows(topic_partition) and not _is_new(state, me)
            if is_missed:
                self._logs.directories.check_all_online(topic_partition)
            if log is not None and (why := _why_foreign(log, topic_id, state)):
                if log.topic_id is None and not _is_new(state, me) and self._may_be_last(log, topic_id, state):
                    self._refuse_unnamed(log, topic_id)
                    return None
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
        """Return whether the partition is new, so that :meth:`open` would only create an empty log."""
        logs = self._logs
        return (
            _is_new(state, me)
            and not (logs.knows(topic_partition) or logs.awaiting.has(topic_partition, topic_id))
            and topic_partition not in self._lost
            and topic_partition not in self.refused
        )

    def _create(self, topic_partition: TopicPartition, topic_id: bytes, state: PartitionState) -> PartitionLog:
        """Return the partition's log, opened or created. Raises the errors of ``LogManager.create``.

        An unreadable log is set aside and copied again if other replicas continue without it. Otherwise the log may be
        the only one with some records, so it stays.
        """
        try:
            return self._logs.create(topic_partition, topic_id)
        except KafkaStorageError as error:
            if not self._is_done_without(state) or not self._logs.is_unreadable(topic_partition):
                raise
            kept = self._logs.retiring.set_aside(topic_partition)
            logger.error(
                "%s: %s; its files are kept in %s, and it is copied again from its leader, broker %d",
                topic_partition, error, kept, state.leader,
            )  # fmt: skip
            return self._logs.create(topic_partition, topic_id)

    def _is_done_without(self, state: PartitionState) -> bool:
        """Return whether other replicas continue without this broker's log: a registered broker leads, and the state
        does not count on the log."""
        leader = self._services.live_brokers().get(state.leader)
        if leader is None or leader.broker_id == self._me or not state.is_led_by(leader):
            return False
        return self._me not in state.isr and self._me not in state.eligible

    def _may_be_last(self, log: PartitionLog, topic_id: bytes, state: PartitionState) -> bool:
        """Return whether a log that does not name its topic may be the only one with some records.

        It is not if the others that had the log have been asked to go on without it, or do so already.
        """
        return not self.has_lost(log.topic_partition, topic_id) and not self._is_done_without(state)

    def _refuse_unnamed(self, log: PartitionLog, topic_id: bytes) -> None:
        """Refuse a log that does not name its topic, and keep it where it is."""
        path = f"{log.directory}/{PARTITION_METADATA_FILE}"
        problem = (
            f"{log.topic_partition} is offline: its log does not name the id of its topic ({path} is missing or "
            "damaged), and no other broker leads the partition, so this log may be the only one. If it is that of the "
            f"topic, stop this broker and write the two lines 'version: 0' and 'topic_id: {uuid_text(topic_id)}' into "
            f"{path}. If it is not, move {log.directory} away. Then start the broker"
        )
        self._refuse(log.topic_partition, problem, logging.ERROR, problem)

    def refuse_for_state(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Refuse the partition, because no broker can lead it with its state in the registry."""
        problem = "cannot be read" if state.unreadable else f"has the last leader epoch, {state.leader_epoch}"
        problem = f"{topic_partition} is offline: registry node {state_path(*topic_partition)} {problem}"
        # For an unreadable node the watcher has already logged the remedy.
        remedy = "write a lower one that its log has not seen, or delete the topic"
        told = "" if state.unreadable else f"{problem}; {remedy}"
        self._refuse(topic_partition, problem, logging.ERROR, told)

    def refuse_without_id(self, topic_partition: TopicPartition) -> bool:
        """Refuse a log that has a topic id while the topic's node has none; return whether there is such a log.

        With a new id for the topic the broker would set the log aside.
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
        """Refuse a partition. Clients receive ``problem``; ``told``, if not empty, is logged once."""
        if told and topic_partition not in self.refused:
            logger.log(level, "%s", told)
        self.refused[topic_partition] = KafkaStorageError(problem)

    def has_lost(self, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        """Return whether the log of a partition is missing, and the broker has created no other one yet."""
        return self._lost.get(topic_partition) == topic_id

    def left(self, topic_partition: TopicPartition, topic_id: bytes) -> None:
        """Note that a partition's log is set aside because this broker is not a replica any more.

        If this broker becomes a replica again, a state that still has it in the ISR is wrong about that.
        """
        self._lost[topic_partition] = topic_id

    def _is_left_to_others(self, topic_partition: TopicPartition, state: PartitionState) -> bool:
        """Leave a partition with a missing log to the other replicas that had its log; return whether there are any.

        This broker's proof that its logs are complete (R12) is wrong for this log: with an empty log the broker could
        be elected. It creates one when the state does not name this broker any more.
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
        """Log a warning about a log that was created for an older partition, whose log is missing."""
        if self._me in state.adding and self._me not in state.isr:
            logger.info("%s is moved here; it is copied from its leader, broker %d", log.topic_partition, state.leader)
        elif state.leader not in (self._me, NO_LEADER):
            logger.warning(
                "%s has no log in any log directory; it is copied from its leader, broker %d",
                log.topic_partition,
                state.leader,
            )
        elif not log.log_end_offset and self._me in state.isr:
            # A broker that is killed while it creates or removes a log leaves the same state.
            logger.warning(
                "%s has no log in any log directory: unless it was being made or deleted when the broker was "
                "killed, whatever it held is lost; it begins at offset 0",
                log.topic_partition,
            )

    def _is_ahead(self, log: PartitionLog, state: PartitionState) -> bool:
        """Refuse a log whose latest leader epoch is greater than the registry's; return whether it is.

        The next recovery would cut batches of a lower epoch after those of a higher one. The broker does not leave the
        partition to other replicas either: if the registry is an older copy, they may have left the ISR since.
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
                "recover-registry. If the registry is right, and another broker has the records, stop this one and "
                f"move the log's directory {log.directory} away: it is copied again"
            )
        self._refuse(log.topic_partition, problem, logging.ERROR, problem)
        return True

    async def note_missing(self, cluster: ClusterState, turn: Turn) -> None:
        """Note the logs that an earlier run of this broker had, and that are gone.

        The start calls this once, after it has loaded the logs. It has already checked that the registry belongs to
        these logs and has lost nothing (``registry_evidence``).
        """
        # No state names this run yet. If a state says that this broker has a log, an earlier run had it.
        for name, topic in cluster.topics.items():
            if topic.topic_id == NO_TOPIC_ID:
                continue
            for number, state in topic.partitions.items():
                await turn.pause()
                key = TopicPartition(name, number)
                log = self._logs.get(key)
                is_gone = not self._logs.knows(key) if log is None else _why_foreign(log, topic.topic_id, state)
                if self._logs.awaiting.has(key, topic.topic_id):
                    continue
                if is_gone and others_with_log(state, self._me):
                    self._lost[key] = topic.topic_id


def _why_foreign(log: PartitionLog, topic_id: bytes, state: PartitionState) -> str:
    """Return why the log may belong to another topic; "" if it belongs to this one."""
    if log.topic_id is not None and log.topic_id != topic_id:
        return "is that of an older topic of the same name"
    if log.topic_id is None and log.log_end_offset and len(state.replicas) > 1:
        # The id is lost by damage (rule R21); the topic may have been created again since (rule R10).
        return "does not name the id of its topic; it is copied again from the other replicas"
    return ""


def _is_new(state: PartitionState, me: BrokerInfo) -> bool:
    """Return whether the partition was created during this run of the broker.

    Only then does its state have leader epoch 0 and name this incarnation. A state that names an earlier incarnation,
    or has a later epoch, belongs to an older partition.
    """
    if me.incarnation == UNKNOWN_INCARNATION:
        return False
    return state.leader_epoch == 0 and state.incarnations.get(me.broker_id) == me.incarnation
