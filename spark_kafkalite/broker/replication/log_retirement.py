"""Puts logs out of use that this broker should not have (any more): deletes them, or sets them aside.

Only a deletion that the controller began deletes records, or a reassignment that has moved a partition to other brokers
(``logs_without_topic``). Everything else is set aside. Logs whose topics have vanished await these, and come into use
again when they appear (:meth:`LogRetirement.take_back`). Directories are renamed in threads; the loop does the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from spark_kafkalite.log.files.deletions import RetireJob
from spark_kafkalite.log.manager import LogManager
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.net.io_threads import IoThreads, in_thread
from spark_kafkalite.printable import first_of
from spark_kafkalite.registry.cluster.cluster_state import ClusterState
from spark_kafkalite.slices import Turn, Work

logger: Final = logging.getLogger(__name__)

# The number of logs that are retired together, and share the sync of their directory.
RETIRED_AT_ONCE: Final = 500
_SHOWN_LOGS: Final = 10


class LogRetirement:
    """See the module's text."""

    def __init__(
        self,
        logs: LogManager,
        io: IoThreads,
        loop: asyncio.AbstractEventLoop,
        has_deleted: Callable[[bytes | None], bool],
    ) -> None:
        """``has_deleted``: whether the controller has deleted the topic of this id, as the view has it."""
        self._logs = logs
        self._io = io
        self._loop = loop
        self._has_deleted = has_deleted

    def retire(
        self,
        opened: Mapping[TopicPartition, bytes],
        unopened: Mapping[TopicPartition, bytes],
        kept: dict[TopicPartition, str],
    ) -> Work[None]:
        """Delete the logs of topics that the controller has deleted, and set the others aside; ``kept`` gets where
        these are. Both are given with their topic ids."""
        has_deleted, retiring = self._has_deleted, self._logs.retiring
        deleted = [key for key, topic_id in opened.items() if has_deleted(topic_id)]
        deleted_unopened = {key: topic_id for key, topic_id in unopened.items() if has_deleted(topic_id)}
        if deleted or deleted_unopened:
            yield from self._run(retiring.start_deletion(deleted, deleted_unopened))
        vanished, vanished_unopened = opened.keys() - set(deleted), unopened.keys() - deleted_unopened.keys()
        if vanished or vanished_unopened:
            job = retiring.start_setting_aside(sorted(vanished), sorted(vanished_unopened), awaits_topic=True)
            yield from self._run(job)
            kept.update((each.key, each.target) for each in job.renamed)

    def set_aside(self, topic_partition: TopicPartition, why: str) -> Work[None]:
        """Set an open log aside, and log why."""
        job = self._logs.retiring.start_setting_aside([topic_partition])
        yield from self._run(job)
        for key, _, _, _, target in job.renamed:
            logger.warning("the log of %s is out of use, because %s; its files are kept in %s", key, why, target)

    def delete_moved(self, topic_partition: TopicPartition, topic_id: bytes, *, is_open: bool) -> Work[None]:
        """Delete the log of a partition that a reassignment has moved away."""
        opened, unopened = ([topic_partition], {}) if is_open else ([], {topic_partition: topic_id})
        job = self._logs.retiring.start_deletion(opened, unopened)
        yield from self._run(job)
        if job.renamed:
            logger.info("%s has been moved to other brokers; its files here are deleted", topic_partition)

    def take_back(self, topic_partition: TopicPartition, topic_id: bytes) -> Work[None]:
        """Use a log again that was set aside because its topic had vanished. Raises OSError and KafkaStorageError."""
        if self._logs.get(topic_partition) is not None:
            yield from self.set_aside(topic_partition, "it is not that of the topic that has its name now")
        job = self._logs.awaiting.start_taking_back(topic_partition, topic_id)
        if job is not None:
            try:
                yield from in_thread(self._io, self._loop, job.run)
            finally:
                self._logs.awaiting.finish_taking_back(job)
            logger.info("the log of %s is in use again, because its topic is in the registry again", topic_partition)

    def _run(self, job: RetireJob) -> Work[None]:
        yield from in_thread(self._io, self._loop, job.run)
        self._finish(job)

    def _finish(self, job: RetireJob) -> None:
        for error in self._logs.retiring.finish(job):
            logger.error("%s", error)

    async def compare(self, cluster: ClusterState, turn: Turn) -> None:
        """Delete or set aside logs that belong to no topic in the registry. Those of a topic with an unreadable node
        stay."""
        deleted: list[TopicPartition] = []
        vanished: list[TopicPartition] = []
        for key, log in list(self._logs.logs.items()):
            await turn.pause()
            if cluster.partition(key) is None and key.topic not in cluster.unreadable_topics:
                (deleted if cluster.has_deleted(log.topic_id) else vanished).append(key)
        kept: dict[TopicPartition, str] = {}
        for part in _parts(deleted):
            self._run_now(self._logs.retiring.start_deletion(part))
            await turn.pause()
        for part in _parts(vanished):
            job = self._run_now(self._logs.retiring.start_setting_aside(part, awaits_topic=True))
            kept |= {each.key: each.target for each in job.renamed}
            await turn.pause()
        warn_of_vanished(kept)

    def _run_now(self, job: RetireJob) -> RetireJob:
        job.run()
        self._finish(job)
        return job


def _parts(keys: Sequence[TopicPartition]) -> Iterable[Sequence[TopicPartition]]:
    return (keys[first : first + RETIRED_AT_ONCE] for first in range(0, len(keys), RETIRED_AT_ONCE))


def warn_of_vanished(kept: Mapping[TopicPartition, str]) -> None:
    """Log a warning about logs that were set aside because their topics vanished; ``kept``: their paths now."""
    if not kept:
        return
    logger.warning(
        "%d logs are set aside, because the registry does not have their topics and the controller has not deleted "
        "them: %s. They are used again when a topic's node with the same topic id appears, and stay until you "
        "remove them",
        len(kept),
        first_of([f"{key} (kept in {path})" for key, path in kept.items()], _SHOWN_LOGS),
    )
