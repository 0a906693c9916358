"""A group's offsets at its coordinator, which keeps them in ``__consumer_offsets``.

Commits are those of a simple consumer, outside of any generation: a coordinator refuses them while the group has
members, so there is no race to lose.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_kafkalite.client.group.administration import delete_group, delete_offsets, describe_group
from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.group.offsets import commit_offsets, fetch_offsets
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.client.offset_stores.store import KAFKA
from spark_kafkalite.model import CommittedOffset, CommittedOffsets, TopicPartition


class CoordinatorOffsets:
    """A :class:`~.store.GroupStore` over one group's coordinator."""

    place = KAFKA

    def __init__(self, coordinator: CoordinatorLink) -> None:
        self._coordinator = coordinator
        self.group_id = coordinator.group_id

    def __repr__(self) -> str:
        return f"the coordinator's offsets of group {self.group_id!r}"

    def __str__(self) -> str:
        return f"group {self.group_id!r}"

    def read(
        self, partitions: Iterable[TopicPartition] | None = None, deadline: Deadline | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        return dict(sorted(fetch_offsets(self._coordinator, partitions, deadline or self._patience()).items()))

    def write(self, offsets: CommittedOffsets, deadline: Deadline | None = None) -> None:
        commit_offsets(self._coordinator, offsets, deadline=deadline or self._patience())

    def close(self) -> None:
        """Nothing: the connections are the cluster client's."""

    def exists(self) -> bool:
        return describe_group(self._coordinator, self._patience()).exists

    def members(self) -> list[str]:
        described = describe_group(self._coordinator, self._patience())
        return [f"{each.client_id} at {each.host.lstrip('/')}" for each in described.members]

    def alter(self, offsets: CommittedOffsets) -> None:
        self.write(offsets)

    def delete_offsets(self, partitions: Iterable[TopicPartition]) -> None:
        delete_offsets(self._coordinator, partitions, self._patience())

    def delete_group(self) -> None:
        delete_group(self._coordinator, self._patience())

    def _patience(self) -> Deadline:
        return Deadline.after_ms(self._coordinator.cluster.config.default_api_timeout_ms)
