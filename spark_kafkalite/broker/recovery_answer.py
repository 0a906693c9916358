"""What a running broker answers when the registry is to be made again: what it has; and how it stands still then.

``kafkalite cluster recover-registry`` asks. The answer is what ``--to FILE`` writes on the host of a stopped broker
(``broker.standalone.host_logs``), from memory, and the topics as the broker knew them. While the broker is registered
the registry is neither lost nor old, and nothing is answered.

Before the command writes, it has the broker stand still: the broker gives up its session, leads and follows nothing,
and so acknowledges nothing and cuts no log back. What it answers then stays true until it is started again; only a
start takes up the states of the new registry, with all checks of a start. A restart also is the way back where nothing
was written. Nothing else ends it: a bound of time might pass between the answer and the new states.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from spark_kafkalite.broker.registry_notes import RegistryNotes
from spark_kafkalite.broker.replication.log_reports import whole_end
from spark_kafkalite.broker.replication.replicas import Replicas
from spark_kafkalite.errors import KafkaStorageError, RegistryError
from spark_kafkalite.log.files.awaiting_logs import STRAY_SUFFIX
from spark_kafkalite.log.loading.highest_ids import MAX_PRODUCER_ID
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.partition_log import PartitionLog
from spark_kafkalite.model import BrokerId, Incarnation, TopicPartition
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.cluster.membership import ClusterMembership
from spark_kafkalite.registry.recovery.host_logs import HostLog, HostLogs, KnownTopic
from spark_kafkalite.registry.znodes import NO_TOPIC_ID
from spark_kafkalite.slices import Slices, Work

logger: Final = logging.getLogger(__name__)

_STAND_STILL_S: Final = 20.0
_WHY: Final = "its broker stands still until it is restarted, because the registry is made again from the logs"


class RecoveryAnswer:
    """See the module's text. Lives in the broker's event loop."""

    def __init__(
        self,
        broker_id: int,
        incarnation: Incarnation,
        slices: Slices,
        view: ClusterView,
        logs: LogManager,
        replicas: Replicas,
        membership: ClusterMembership,
        notes: RegistryNotes,
        io: IoThreads,
    ) -> None:
        self._me = BrokerId(broker_id)
        self._incarnation = incarnation
        self._slices = slices
        self._view = view
        self._logs = logs
        self._replicas = replicas
        self._membership = membership
        self._notes = notes
        self._io = io
        self._asking = asyncio.Lock()
        self._was_told = False

    async def encoded(self, *, stands_still: bool) -> bytes:
        """Return what this broker has (``HostLogs``); with ``stands_still`` the logs do not change afterwards.

        Raises RegistryError while the broker is registered, KafkaStorageError when it cannot read all of its logs.
        """
        async with self._asking:
            if self._membership.is_connected:
                raise RegistryError(
                    "it is connected to a registry that is neither lost nor older than its logs; if that is to be made "
                    "again all the same, stop all brokers and read their log directories (--to)"
                )
            why = self._logs.why_incomplete()
            if why is not None:
                raise KafkaStorageError(f"{why}; stop this broker and read its log directories (--to)")
            if stands_still:
                await self._stand_still()
            set_aside = await self._io.run(self._set_aside)
            host = await self._slices.run(self._look(set_aside))
            return await self._io.run(host.encode)

    async def _stand_still(self) -> None:
        if not self._was_told:
            self._was_told = True
            logger.warning(
                "kafkalite cluster recover-registry has asked this broker for its logs: until it is restarted it leads "
                "and copies nothing, and refuses produces with NOT_LEADER_OR_FOLLOWER; restart it when that command "
                "has written the registry, or to go on without it"
            )
        await self._replicas.stand_still(_WHY, _STAND_STILL_S)
        await self._membership.close()
        # What the next start goes by has to be what is answered.
        await self._io.run(lambda: self._notes.write(self._notes.zxid), Lane.SYNC)

    def _set_aside(self) -> tuple[str, ...]:
        """Return the directories that are set aside. In a thread; OSError is one of the disk."""
        fs = self._logs.fs
        try:
            return tuple(
                f"{path}/{each.name}"
                for path in self._logs.log_dirs
                for each in fs.entries(path)
                if each.is_directory and each.name.endswith(STRAY_SUFFIX)
            )
        except OSError as error:
            raise KafkaStorageError(f"a log directory cannot be read: {error}") from error

    def _look(self, set_aside: tuple[str, ...]) -> Work[HostLogs]:
        producer_id = self._membership.last_producer_id
        logs, compacted = [], set()
        for key, log in sorted(self._logs.logs.items()):
            yield None
            logs.append(self._host_log(key, log))
            if log.config.is_compacted:
                compacted.add(key.topic)
            highest = log.producers.state.highest_id
            producer_id = max(producer_id, highest if highest <= MAX_PRODUCER_ID else -1)
        cluster, topics = self._view.state, []
        for name, topic in cluster.topics.items():
            yield None
            if topic.topic_id != NO_TOPIC_ID:
                replicas = {number: state.replicas for number, state in topic.partitions.items()}
                topics.append(KnownTopic(name, topic.topic_id, replicas, topic.config))
        return HostLogs(
            self._me,
            cluster.cluster_id,
            self._incarnation,
            self._notes.zxid,
            producer_id,
            tuple(logs),
            frozenset(compacted),
            set_aside,
            topics=tuple(topics),
        )

    def _host_log(self, key: TopicPartition, log: PartitionLog) -> HostLog:
        end_offset, last_epoch = whole_end(log)
        partition = self._replicas.find(key)
        committed = self._logs.high_watermark(key) if partition is None else partition.bounds.remembered_high_watermark
        return HostLog(
            key,
            None if log.topic_id == NO_TOPIC_ID else log.topic_id,
            last_epoch,
            end_offset,
            # Also one under which nothing was appended.
            max(log.epochs.latest, -1 if partition is None else partition.leader_epoch),
            any(start < end_offset for start, _ in log.damaged_ranges),
            committed or 0,
        )
