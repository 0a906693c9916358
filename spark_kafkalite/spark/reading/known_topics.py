"""The topics that a streaming query reads, by id: a topic that was deleted and created again is another one.

A process knows the ids that it has seen. After a restart they come from the query's checkpoint
(``checkpoints.checkpoint_ids``) and from a group's commits (``checkpoints.checkpoint_commits``). Without either, and at
brokers without topic ids, only offsets that go backwards show a topic that was created again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spark_kafkalite.spark.reading.data_loss import recreated
from spark_kafkalite.spark.reading.topic_id import topic_id_of, topic_id_text

if TYPE_CHECKING:
    from spark_kafkalite.spark.checkpoints.checkpoint_access import CheckpointIds
    from spark_kafkalite.spark.options.options import ReaderOptions
    from spark_kafkalite.spark.reading.cluster_offsets import Assigned


class KnownTopics:
    """What one source of a query knows of its topics. ``recreated`` are those whose next batch reads a new topic."""

    def __init__(self, options: ReaderOptions) -> None:
        self._options = options
        self.recreated: set[str] = set()
        self._ids: dict[str, bytes] = {}
        self._seen_again: set[str] = set()
        self._has_compared = False
        self._checkpoint_made: CheckpointIds | None = None

    @property
    def _checkpoint(self) -> CheckpointIds:
        if self._checkpoint_made is None:
            from spark_kafkalite.spark.checkpoints.checkpoint_access import CheckpointIds

            self._checkpoint_made = CheckpointIds(self._options)
        return self._checkpoint_made

    @property
    def ids(self) -> dict[str, bytes]:
        """The ids of topics, as far as they have one."""
        return {topic: topic_id for topic, topic_id in self._ids.items() if any(topic_id)}

    def is_same(self, topic: str) -> bool:
        """Whether the topic is known to be the one that the query has read before."""
        return topic in self._seen_again

    def note(self, assigned: Assigned) -> None:
        """Remember the ids of topics, and find topics that were deleted and created again.

        Raises SparkConditionError for such a topic unless data may be lost.
        """
        for topic, topic_id in assigned.topic_ids.items():
            if not any(topic_id):
                continue
            before = self._ids.get(topic)
            if before is not None and before != topic_id:
                loss = recreated(topic, before, topic_id)
                self._options.losses.meet(loss, ", with the new topic from its first offset")
                self.recreated.add(topic)
                self._seen_again.discard(topic)
            elif before is not None:
                self._seen_again.add(topic)
            self._ids[topic] = topic_id

    def compare(
        self,
        topics: set[str],
        position: Mapping[str, Any],
        committed_ids: Callable[[], Mapping[str, bytes] | None],
        assigned: Callable[[set[str]], Assigned],
    ) -> set[str]:
        """After a restart, return those of the topics that were created again since; looks only once in a process.

        ``position`` is the logged offset at which the query goes on. ``committed_ids`` returns the ids in the commits
        of a group, None if there are none to ask; ``assigned`` those that the topics have now. A checkpoint's ids are
        written with its offsets, so they are right where a commit has failed. Raises SparkConditionError if
        ``checkpointLocation`` is the checkpoint of another query, and for such a topic unless data may be lost.
        """
        if self._has_compared:
            return set()
        self._has_compared = True
        committed = committed_ids()
        kept = self._checkpoint.known(position)
        if committed is None and not kept:
            return set()
        self._ids.update(committed or {})
        now = assigned(topics)
        for topic, topic_id in now.topic_ids.items():
            if before := kept.get(topic):
                is_same = topic_id_text(topic_id) in before
                self._ids[topic] = topic_id if is_same else topic_id_of(min(before)) or topic_id
        self.note(now)
        return topics & self.recreated

    def keep(self, position: Mapping[str, Any], topics: Iterable[str]) -> None:
        """Write the ids of topics into the checkpoint, where it lacks them.

        ``position`` is in the offset log, and was planned under them.
        """
        ids = {
            topic: text for topic in set(topics) - self.recreated if (text := topic_id_text(self._ids.get(topic, b"")))
        }
        self._checkpoint.remember(position, ids)
