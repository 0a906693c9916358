"""Keeps the partitions that this broker hosts (``hosted_partitions``) in step with the registry.

Every change of the cluster arrives as a pair of snapshots (:meth:`Replicas.cluster_changed`). Removed topics stop being
served at once. Work on the disk is done in slices (making and opening logs) or in threads (renaming those of removed
topics). So a topic with a thousand partitions does not delay other requests. It is done one piece after the other, in
order: a topic made again finds the logs of its predecessor gone. What is done is decided by the snapshot in force when
the work is done, not by the one that asked for it.

All state is keyed by topic id (rule R10). ``hosted_logs`` decides which log a partition has here, and why it has none;
``log_retirement`` puts logs out of use whose topics are gone. The order of the work is that of ``change_queue``.

For the recovery of the registry all of that stands still (:meth:`Replicas.stand_still`), so that the logs stay as they
are until the broker is started again.

A partition is led only in a state that names this incarnation of the broker, or one whose logs it has proven to have
(R1, R11, R12): after any other the controller elects again under a higher epoch. While there is no registration nothing
is led (``session_fence``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from spark_kafkalite.broker.replication.change_queue import ChangeQueue
from spark_kafkalite.broker.replication.copied_again import CopiedAgain
from spark_kafkalite.broker.replication.departures import Departures
from spark_kafkalite.broker.replication.follower import Follower
from spark_kafkalite.broker.replication.hosted_logs import HostedLogs
from spark_kafkalite.broker.replication.hosted_partitions import HostedPartitions, complete
from spark_kafkalite.broker.replication.log_retirement import RETIRED_AT_ONCE, LogRetirement, warn_of_vanished
from spark_kafkalite.broker.replication.logs_without_topic import fate_of_stray, is_moved_away
from spark_kafkalite.broker.replication.partition import Partition, PartitionServices
from spark_kafkalite.broker.replication.session_fence import SessionFence
from spark_kafkalite.broker.replication.setbacks import tell_of_setback
from spark_kafkalite.errors import (
    KafkaStorageError,
)
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.log.strays import StrayFate
from spark_kafkalite.log.topic_config import TopicConfig
from spark_kafkalite.model import NO_LEADER_EPOCH, TopicPartition
from spark_kafkalite.net.io_threads import in_thread
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo, ClusterChange, ClusterState
from spark_kafkalite.registry.cluster.cluster_view import ClusterView
from spark_kafkalite.registry.znodes import NO_TOPIC_ID, state_path
from spark_kafkalite.slices import Slices, Work

logger = logging.getLogger(__name__)

# New logs that a thread makes in a row; fewer than the least are made on the loop.
_MADE_AT_ONCE: Final = 256
_MADE_IN_THREAD: Final = 16


class Replicas(HostedPartitions):
    """The hosted partitions, which follow the registry. Lives in one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        logs: LogManager,
        services: PartitionServices,
        view: ClusterView,
        config_of: Callable[[str], TopicConfig],
        slices: Slices,
    ) -> None:
        """``config_of`` gives a topic's settings, as the view has them."""
        self._hosted_logs = HostedLogs(logs, services)
        super().__init__(loop, logs, services, view, self._hosted_logs.refused)
        self._slices = slices
        self._config_of = config_of
        self._fence = SessionFence(view, self._partitions, self._untruncated)
        self._retirement = LogRetirement(logs, services.io, loop, lambda topic_id: view.state.has_deleted(topic_id))
        self._queue = ChangeQueue(loop, slices, self._follow, self._changed)
        # Those that neither lead nor follow until they are released.
        self._held: set[TopicPartition] = set()
        self._copied_again = CopiedAgain(lambda topic_partition: services.on_lacking(topic_partition))
        self._departures = Departures(loop, services.broker_id, self.take_up)
        # Who waits for the end of a partition's truncation.
        self._truncations: dict[Partition, list[asyncio.Future[None]]] = {}
        services.on_storage_failure = self.storage_failed
        services.on_follower_log_start = self._changed
        services.live_brokers = lambda: view.state.brokers
        services.on_settled.append(self._settled)
        services.is_member = self._is_member
        services.is_eligible = self._is_eligible
        services.unclean_epoch_of = self._unclean_epoch_of
        services.on_parted = self._parted
        services.is_added = self._is_added
        services.joins_flushed = self._joins_flushed

    def _is_member(self, topic_partition: TopicPartition) -> bool:
        state, me = self._view.state.partition(topic_partition), self._fence.me
        return state is not None and me is not None and state.is_member(me)

    def _is_eligible(self, topic_partition: TopicPartition) -> bool:
        state, me = self._view.state.partition(topic_partition), self._fence.me
        return state is not None and me is not None and state.is_eligible(me)

    def _unclean_epoch_of(self, topic_partition: TopicPartition) -> int:
        state = self._view.state.partition(topic_partition)
        return NO_LEADER_EPOCH if state is None else state.unclean_epoch

    def _is_added(self, topic_partition: TopicPartition) -> bool:
        state = self._view.state.partition(topic_partition)
        return state is not None and self._services.broker_id in state.adding

    def _joins_flushed(self, topic_partition: TopicPartition) -> bool:
        state = self._view.state.partition(topic_partition)
        me = self._services.broker_id
        return state is not None and me in state.adding and me not in state.isr

    # Changes --------------------------------------------------------------------------------------------------------

    def set_registration(self, me: BrokerInfo | None) -> None:
        """Act under this registration from now on: apply the registry's states of this broker's partitions.

        None: the registration is lost, so nothing is led until there is another one (rule R6); logs stay open.
        """
        if self._fence.stands_still:
            return
        self._fence.me = me
        if me is None:
            self._queue.add(self._fence.stop_leading)
            self._queue.start()
        else:
            self._queue_all(self._view.state)

    async def stand_still(self, why: str, timeout_s: float) -> None:
        """Lead and follow nothing any more, until the end of this run: the logs stay as they are when this returns.

        Raises KafkaStorageError when that takes too long; it may be called again then.
        """
        self._fence.stands_still, self._fence.me = True, None
        self._queue.add(partial(self._fence.stop_all, why))
        self._queue.start()
        if not await self.wait_until(lambda: self.is_idle and self._fence.has_stopped, timeout_s):
            raise KafkaStorageError(f"some logs are still being cut back after {timeout_s:.0f} s")

    def _queue_all(self, cluster: ClusterState) -> None:
        for name, topic in cluster.topics.items():
            for number in topic.partitions:
                self._queue.add(TopicPartition(name, number))
        self._queue.start()

    def cluster_changed(self, old: ClusterState, new: ClusterState, change: ClusterChange) -> None:
        """Follow a change of the cluster."""
        dropped: list[Partition] = []
        unopened: dict[TopicPartition, bytes] = {}
        for name, topic_id in change.deleted_topics:
            how = "has been deleted" if new.has_deleted(topic_id) else "is not in the registry any more"
            if topic_id != NO_TOPIC_ID:
                logger.info("topic %s %s", name, how)
            dropped += self._dropped(name, topic_id, old.topics[name].partitions, unopened)
        for name in change.unreadable_topics:
            # The watcher has said what to do. Nobody knows whose the logs are now, so they stay where they are.
            kept = list(self._dropped(name, old.topics[name].topic_id, old.topics[name].partitions, {}))
            self._queue.add(partial(self._close, kept))
        if dropped or unopened:
            self._queue.add(partial(self._retire, dropped, unopened))
            if self._failed:
                # What was deleted may have held the descriptors that others wait for.
                self._queue.add(self.retry_failed)
        for name in change.changed_configs:
            self._queue.add(partial(self._apply_config, name))
        self._queue.add(*change.changed_partitions)
        if change.new_brokers or change.bounced_brokers:
            self._queue.add(*self._copied_again)
        self._queue.start()
        self._changed()

    def _dropped(
        self, name: str, topic_id: bytes, numbers: Iterable[int], unopened: dict[TopicPartition, bytes]
    ) -> Iterator[Partition]:
        """Stop serving a removed topic at once, and yield its partitions; those that could not be served go into
        ``unopened``."""
        for number in numbers:
            topic_partition = TopicPartition(name, number)
            if self._failed.pop(topic_partition, None) is not None and topic_id != NO_TOPIC_ID:
                unopened[topic_partition] = topic_id
            partition = self._partitions.get(topic_partition)
            if partition is not None and partition.topic_id == topic_id:
                del self._partitions[topic_partition]
                yield partition

    def _close(self, dropped: Sequence[Partition]) -> Work[None]:
        """Answer requests that wait for partitions that are not served any more."""
        for partition in dropped:
            partition.close()
            yield None

    def _retire(self, dropped: list[Partition], unopened: Mapping[TopicPartition, bytes]) -> Work[None]:
        """Answer requests that wait for partitions of removed topics, and delete their files or set them aside."""
        kept: dict[TopicPartition, str] = {}
        while dropped:
            some, dropped[:RETIRED_AT_ONCE] = dropped[:RETIRED_AT_ONCE], []
            topic_ids: dict[TopicPartition, bytes] = {}
            for partition in some:
                partition.close()
                yield from self._untruncated(partition)
                if self._logs.get(partition.topic_partition) is partition.log:
                    topic_ids[partition.topic_partition] = partition.topic_id
                yield None
            yield from self._retirement.retire(topic_ids, {}, kept)
            # Files are closed with the last that refers to a partition, and what has been deleted is given back to the
            # file system then.
            del partition
            yield from in_thread(self._services.io, self._loop, some.clear)
        left = iter(unopened.items())
        while part := dict(islice(left, RETIRED_AT_ONCE)):
            yield from self._retirement.retire({}, part, kept)
        warn_of_vanished(kept)

    def broker_config_changed(self) -> None:
        """Have every topic's settings counted again, because the broker's defaults have changed."""
        for name in self._view.state.topics:
            self._queue.add(partial(self._apply_config, name))
        self._queue.start()

    def _apply_config(self, name: str) -> Work[None]:
        """Have a topic's partitions obey its settings."""
        topic = self._view.state.topics.get(name)
        if topic is None:
            return
        config = self._config_of(name)
        for number in topic.partitions:
            partition = self._partitions.get(TopicPartition(name, number))
            if partition is not None and partition.log.config != config:
                partition.apply_config(config)
            yield None

    # Work in slices -------------------------------------------------------------------------------------------------

    def _follow(self, topic_partition: TopicPartition) -> Work[None]:
        if self._topic_id_to_make(topic_partition) is not None:
            yield from self._make_logs(topic_partition)
        work = self._apply_state(topic_partition)
        if work is not None:
            yield from work

    def _topic_id_to_make(self, topic_partition: TopicPartition) -> bytes | None:
        """Return the topic id of a new partition whose log is to be made here; None for any other."""
        topic = self._view.state.topics.get(topic_partition.topic)
        state = topic.partitions.get(topic_partition.partition) if topic is not None else None
        if topic is None or state is None or self._fence.me is None or topic.topic_id == NO_TOPIC_ID:
            return None
        if not state.has_state or state.unreadable or self._services.broker_id not in state.replicas:
            return None
        is_new = self._hosted_logs.is_to_be_made(topic_partition, topic.topic_id, state, self._fence.me)
        return topic.topic_id if is_new else None

    def _make_logs(self, first: TopicPartition) -> Work[None]:
        """Have a thread make the logs of this new partition and of those that come next, if they are many.

        The loop makes a few itself, which is sooner done. What fails is left to ``_apply_state``.
        """
        wanted: dict[TopicPartition, bytes] = {}
        for piece in (first, *islice(self._queue.next_pieces(), _MADE_AT_ONCE - 1)):
            topic_id = self._topic_id_to_make(piece) if isinstance(piece, TopicPartition) else None
            if not isinstance(piece, TopicPartition) or topic_id is None:
                break
            wanted[piece] = topic_id
        if len(wanted) < _MADE_IN_THREAD:
            return
        job = self._logs.start_making(wanted.items())
        yield from in_thread(self._services.io, self._loop, job.run)
        # Their topics may have been removed meanwhile.
        left_over = {
            log.topic_partition: wanted[log.topic_partition]
            for log in self._logs.finish_making(job)
            if self._view.topic_id_of(log.topic_partition.topic) != wanted[log.topic_partition]
        }
        if left_over:
            yield from self._retire_unwanted(left_over)

    @property
    def is_idle(self) -> bool:
        """Whether all changes of the registry so far have been acted upon."""
        return self._queue.is_idle

    def _settled(self, partition: Partition) -> None:
        """Apply the registry's changes that arrived while a partition's log was being truncated."""
        if self._partitions.get(partition.topic_partition) is partition:
            self.take_up(partition.topic_partition)
        for waiter in self._truncations.pop(partition, ()):
            complete(waiter)

    def _untruncated(self, partition: Partition) -> Work[None]:
        """Wait until no thread works on a partition's log."""
        while partition.is_truncating:
            waiter = self._loop.create_future()
            self._truncations.setdefault(partition, []).append(waiter)
            yield waiter

    def _apply_state(self, topic_partition: TopicPartition) -> Work[None] | None:
        """Bring one partition into the state that the registry has for it now."""
        cluster = self._view.state
        topic = cluster.topics.get(topic_partition.topic)
        state = topic.partitions.get(topic_partition.partition) if topic is not None else None
        if topic is None or state is None or self._fence.me is None:
            return None
        if topic.topic_id == NO_TOPIC_ID and self._hosted_logs.refuse_without_id(topic_partition):
            return None
        if not state.has_state:
            self._lead_no_more(topic_partition)
            return None
        if self._services.broker_id not in state.replicas:
            return self._leave(topic_partition) if self._logs.knows(topic_partition) else None
        self._departures.forget(topic_partition)
        partition = self._partitions.get(topic_partition)
        if partition is None and self._logs.awaiting.has(topic_partition, topic.topic_id):
            return self._take_back(topic_partition, topic.topic_id)
        if state.unreadable or (partition is None and state.epochs_are_used_up):
            self._hosted_logs.refuse_for_state(topic_partition, state)
            return None
        if partition is None:
            log = self._hosted_logs.open(topic_partition, topic.topic_id, state, self._fence.me)
            if log is None:
                return None
            checkpointed = self._logs.high_watermark(topic_partition)
            partition = Partition(topic_partition, topic.topic_id, log, self._services, checkpointed)
            self._partitions[topic_partition] = partition
        if partition.is_truncating or topic_partition in self._held:
            # It comes here again when that has ended.
            return None
        if tell_of_setback(partition, state) or self._copied_again.is_named_too_early(partition, state, self._fence.me):
            return None
        if state.is_led_by(self._fence.me):
            try:
                partition.become_leader(state)
            except KafkaStorageError as error:
                if partition.log.failure is None:
                    raise
                self._services.on_storage_failure(partition, error)
        elif state.leader != self._services.broker_id:
            # One that names nobody may be older than the log: epochs do not go back.
            epoch = max(state.leader_epoch, partition.leader_epoch) if state.names_nobody else state.leader_epoch
            partition.resign(state.leader, epoch, state.version, state.created_zxid)
        else:
            # The state means another run of this broker, whose log this may not be; the controller elects again.
            partition.resign(-1, state.leader_epoch, state.version, state.created_zxid)
        return None

    def _lead_no_more(self, topic_partition: TopicPartition) -> None:
        """Give up the leadership of a partition whose state node is gone: the controller elects the next leader."""
        partition = self._partitions.get(topic_partition)
        if partition is not None and partition.is_leader:
            path = state_path(*topic_partition)
            # The states of a topic that is being deleted go before it does.
            if not self._view.state.has_deleted(partition.topic_id):
                logger.warning(
                    "%s is not led here any more, because registry node %s is gone; the controller makes it again, and "
                    "a replica leads when all have reported what their logs have",
                    topic_partition,
                    path,
                )
            partition.fence(f"registry node {path} is gone")

    def _take_back(self, topic_partition: TopicPartition, topic_id: bytes) -> Work[None]:
        """Use a log again that was set aside because its topic had vanished, and bring the partition into its state."""
        try:
            yield from self._retirement.take_back(topic_partition, topic_id)
        except (OSError, KafkaStorageError) as error:
            # Not an empty log instead: it is tried again with the others that failed.
            logger.error("the log of %s, which was set aside, cannot be used again: %s", topic_partition, error)
            self._failed[topic_partition] = KafkaStorageError(f"{topic_partition}: {error}")
            return
        if self._view.topic_id_of(topic_partition.topic) == topic_id:
            self._queue.add(topic_partition)
        elif self._logs.get(topic_partition) is not None:
            yield from self._retire_unwanted({topic_partition: topic_id})

    def _retire_unwanted(self, topic_ids: Mapping[TopicPartition, bytes]) -> Work[None]:
        """Put logs out of use again whose topics have been removed meanwhile."""
        kept: dict[TopicPartition, str] = {}
        yield from self._retirement.retire(topic_ids, {}, kept)
        warn_of_vanished(kept)

    def _leave(self, topic_partition: TopicPartition) -> Work[None]:
        """Put the log of a partition out of use that this broker is no replica of (any more).

        It is deleted where the state names this broker as one that a reassignment has taken the partition from (rule
        V6): the others have everything. Otherwise the list was written by hand, and the log is set aside.
        """
        partition = self._partitions.pop(topic_partition, None)
        self._failed.pop(topic_partition, None)
        if partition is not None:
            partition.close()
            yield from self._untruncated(partition)
        state = self._view.state.partition(topic_partition)
        if self._departures.awaits_other_node(topic_partition, state):
            return
        log, topic_id = self._logs.get(topic_partition), self._view.topic_id_of(topic_partition.topic)
        if log is not None and log.topic_id is not None:
            self._hosted_logs.left(topic_partition, log.topic_id)
        is_of_topic = log is None or log.topic_id in (None, topic_id)
        is_moved = state is not None and is_moved_away(state, self._services.broker_id)
        if topic_id is not None and is_of_topic and is_moved:
            yield from self._retirement.delete_moved(topic_partition, topic_id, is_open=log is not None)
        elif log is not None:
            yield from self._retirement.set_aside(topic_partition, "this broker is no replica of it any more")

    def hold(self, partition: Partition) -> None:
        """Have a partition, which this broker follows, do nothing until :meth:`release`, because its log has other
        records than its leader's."""
        self._held.add(partition.topic_partition)
        partition.stop_following("its log differs from its leader's, and is copied again")

    def release(self, partition: Partition, *, is_left: bool) -> None:
        """Set the log of a held partition aside and copy it again, if the ISR has been left; else follow as before."""
        self._queue.add(partial(self._copy_again if is_left else self._unhold, partition))
        self._queue.start()

    def _parted(self, partition: Partition) -> None:
        self._queue.add(partial(self._copy_parted, partition))
        self._queue.start()

    def _copy_parted(self, partition: Partition) -> Work[None]:
        """Set the log of a partition aside that has committed records which its leader lacks, and copy it again."""
        role, is_hosted = partition.role, self._partitions.get(partition.topic_partition) is partition
        if is_hosted and isinstance(role, Follower) and role.is_parted:
            self.hold(partition)
            yield from self._copy_again(partition, "its leader lacks committed records that it has")

    def _unhold(self, partition: Partition) -> None:
        self._held.discard(partition.topic_partition)
        self._queue.add(partition.topic_partition)

    def _copy_again(self, partition: Partition, why: str = "") -> Work[None]:
        """Set a log aside and begin another one. ``why`` is given where the leader cannot have counted the former
        one."""
        topic_partition = partition.topic_partition
        if self._partitions.get(topic_partition) is partition and not self._fence.stands_still:
            del self._partitions[topic_partition]
            # Should the state have named this broker again meanwhile, it leaves once more before it makes a log.
            self._hosted_logs.left(topic_partition, partition.topic_id)
            if not why:
                self._copied_again.add(partition)
            partition.close()
            yield from self._untruncated(partition)
            if self._logs.get(topic_partition) is partition.log:
                yield from self._retirement.set_aside(topic_partition, why or "it differs from its leader's")
            if self._logs.get(topic_partition) is partition.log:
                text = f"{topic_partition}: its log, which differs from its leader's, could not be set aside"
                self._failed[topic_partition] = KafkaStorageError(f"{text}; restart the broker when its disk is well")
                return
        self._unhold(partition)

    def take_up(self, topic_partition: TopicPartition) -> None:
        """Act once more on the registry's state of a partition: lead again what this broker was to resign, and did
        not."""
        self._queue.add(topic_partition)
        self._queue.start()

    def retry_failed(self) -> None:
        """Try again to open or make the logs that could not be, for want of room or descriptors."""
        self._queue.add(*self._failed)
        self._queue.start()

    def has_lost(self, topic_partition: TopicPartition, topic_id: bytes) -> bool:
        """Return whether the log of a partition is gone, and no other has been made yet."""
        return self._hosted_logs.has_lost(topic_partition, topic_id)

    async def compare_logs(self) -> None:
        """Set logs aside that belong to no topic of the registry, and note those that are gone; called once, when the
        logs have been loaded and the view is known to be theirs."""
        cluster, turn = self._view.state, self._slices.turn()
        await self._retirement.compare(cluster, turn)
        await self._hosted_logs.note_missing(cluster, turn)

    def fate_of_stray(self, directory: str, topic_id: bytes | None) -> StrayFate:
        """Return what becomes of a log that was set aside. In any thread."""
        return fate_of_stray(self._view.state, self._services.broker_id, directory, topic_id)

    def check_room(self) -> None:
        """Raise KafkaStorageError (56) when no log directory takes records."""
        self._logs.directories.check_room()

    # Failure and end ------------------------------------------------------------------------------------------------

    def storage_failed(self, failed: Partition, error: BaseException) -> None:
        """Take every partition in the log directory of ``failed`` offline, because its disk cannot be trusted."""
        self._logs.fail_directory(failed.log.disk.path, str(error))
        # What was offline before.
        failed.go_offline(error)

    def directory_failed(self, path: str) -> None:
        """Stop serving the partitions of a log directory that is offline now; the manager has logged why."""
        for partition in self.in_directory(path):
            partition.go_offline(KafkaStorageError(partition.log.failure or f"log directory {path} is offline"))
        self._changed()

    def directory_hangs(self, path: str) -> None:
        """Have the partitions of a log directory whose disk does not answer left to others, where there are any."""
        partitions = self.in_directory(path)
        for partition in partitions:
            partition.disk_hangs()
        self._services.on_hanging(partitions)

    def close(self) -> None:
        """Answer every waiting request; nothing is served afterwards."""
        self._queue.clear()
        for partition in self._partitions.values():
            partition.close()
