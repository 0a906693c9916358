"""Administration of consumer groups: list and describe them, read, move and delete their offsets, delete them.

The base of :class:`spark_kafkalite.client.admin.admin.Admin` for these calls. Each group is asked for at its own
coordinator (``client/group/coordinator_link.py`` finds it and tries again while it moves or loads); a list is put
together from all brokers.

Offsets are the next ones to read. They can be moved only while the group has no members: members go on from where they
are, and would commit over what is written here. A coordinator keeps to that, so there is no race to lose.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_kafkalite.client.admin.requests import AdminRequests
from spark_kafkalite.client.group.administration import (
    GroupDescription,
    delete_group,
    delete_offsets,
    describe_group,
    raise_first,
)
from spark_kafkalite.client.group.coordinator_link import CoordinatorLink
from spark_kafkalite.client.group.lag import PartitionLag, partition_lags
from spark_kafkalite.client.group.offsets import as_committed, commit_offsets, fetch_offsets
from spark_kafkalite.client.network.retry import Deadline
from spark_kafkalite.errors import (
    ConfigError,
    GroupIdNotFound,
    KafkaError,
    KafkaliteError,
    UnsupportedVersion,
)
from spark_kafkalite.model import GROUP_STATES, CommittedOffset, TopicPartition
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.list_groups import ListGroupsRequest
from spark_kafkalite.wire.rights import refusal


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group in a list. ``state`` and ``group_type`` are empty where the broker is too old to return them."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class GroupAdmin(AdminRequests):
    """The calls of an administrator that have to do with groups."""

    def list_groups(self, states: Iterable[str] | None = None, *, timeout_ms: int | None = None) -> list[GroupListing]:
        """Return the groups of all brokers in order of their ids, of all states or of these (such as "Stable").

        Raises UnsupportedVersion for ``states`` when a broker is older than Kafka 2.6, ConfigError for one that there
        is not.
        """
        deadline = self._deadline(timeout_ms)
        wanted = None if states is None else list(states)
        for state in wanted or ():
            if state not in GROUP_STATES:
                raise ConfigError(
                    f"state {state!r}: groups have no such state; the states are {', '.join(GROUP_STATES)}"
                )
        request = ListGroupsRequest(states_filter=wanted or [])
        found: dict[str, GroupListing] = {}
        for broker_id in sorted(self._cluster.refresh([], deadline).nodes):
            answer = self._retried(partial(self._listed, broker_id, request, deadline), deadline)
            for each in answer.groups:
                if wanted and not each.group_state:
                    raise UnsupportedVersion(f"broker {broker_id} is too old to list groups by state")
                found[each.group_id] = GroupListing(
                    each.group_id, each.protocol_type, each.group_state, each.group_type
                )
        return [found[group_id] for group_id in sorted(found)]

    def _listed(self, broker_id: int, request: ListGroupsRequest, deadline: Deadline) -> Any:
        answer = self._cluster.request_to(
            broker_id, ApiKey.LIST_GROUPS, request, deadline.earlier_of(self.config.request_timeout_ms)
        )
        if answer.error_code:
            raise refusal(ApiKey.LIST_GROUPS, answer.error_code, f"the groups of broker {broker_id} cannot be listed")
        return answer

    def describe_groups(
        self, group_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, GroupDescription]:
        """Return state, assignor, coordinator and members of groups.

        A group that does not exist has the state "Dead" and no members (see ``GroupDescription.exists``).
        """
        deadline = self._deadline(timeout_ms)
        return {
            group_id: describe_group(CoordinatorLink(self._cluster, group_id), deadline)
            for group_id in dict.fromkeys(group_ids)
        }

    def group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, of these partitions or all; what was never committed is left out.

        An unknown group has none.
        """
        deadline = self._deadline(timeout_ms)
        found = fetch_offsets(CoordinatorLink(self._cluster, group_id), partitions, deadline)
        return dict(sorted(found.items()))

    def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset | int],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Commit offsets in the name of a group without members; the group comes into being when there is none.

        Raises UnknownMemberId (25) while it has members, UnknownTopicOrPartition (3) for partitions that are not there
        (the others are committed). Nothing checks that the offsets lie in the log.
        """
        coordinator = CoordinatorLink(self._cluster, group_id)
        commit_offsets(coordinator, as_committed(offsets), deadline=self._deadline(timeout_ms))

    def group_lag(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, PartitionLag]:
        """Return how far a group is behind, in records and in time, on these partitions or where it has offsets.

        Raises GroupIdNotFound (69).
        """
        wanted = None if partitions is None else list(partitions)
        committed = self.group_offsets(group_id, wanted, timeout_ms=timeout_ms)
        if not committed and not self.describe_groups([group_id], timeout_ms=timeout_ms)[group_id].exists:
            raise GroupIdNotFound(f"the lag of group {group_id!r}: there is no group {group_id!r}")
        asked = committed if wanted is None else wanted
        return self.lag_behind(
            {each: committed[each].offset if each in committed else None for each in asked}, timeout_ms=timeout_ms
        )

    def lag_behind(
        self, offsets: Mapping[TopicPartition, int | None], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, PartitionLag]:
        """Return how far readers at these offsets are behind, wherever they keep them (None: no offset)."""
        return partition_lags(self._cluster, offsets, self._deadline(timeout_ms), self._clock)

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> None:
        """Delete a group's committed offsets of partitions; those without any are passed over.

        Raises GroupIdNotFound (69), GroupSubscribedToTopic (86) for topics that its members read,
        UnknownTopicOrPartition (3); other partitions are deleted all the same.
        """
        delete_offsets(CoordinatorLink(self._cluster, group_id), partitions, self._deadline(timeout_ms))

    def delete_groups(self, group_ids: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete groups without members, with all their offsets.

        Every group is tried, then the first error is raised with all of them in its text: NonEmptyGroup (68) while one
        has members, GroupIdNotFound (69).
        """
        deadline = self._deadline(timeout_ms)
        failed: list[KafkaliteError] = []
        for group_id in dict.fromkeys(group_ids):
            try:
                delete_group(CoordinatorLink(self._cluster, group_id), deadline)
            except KafkaError as error:
                failed.append(error)
        raise_first(failed)
