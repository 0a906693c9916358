"""What the members of all groups take in memory, and which group has to go when another one needs the room.

A group that never synced is removed first, the oldest first: it takes room for as long as its members' sessions last,
and its members read nothing. Next are groups that hold more than an eighth of the memory. So a few groups with large
member metadata keep no other group from joining. If this does not free enough, the join is refused.

Pure but for one warning a minute, which names the group.
"""

from __future__ import annotations

import logging
from typing import Final

from spark_kafkalite.clock import Clock
from spark_kafkalite.coordinator.groups.group import Group
from spark_kafkalite.errors import CoordinatorNotAvailable

logger = logging.getLogger(__name__)

# No group holds more than such a part of the memory while others want room.
_LARGEST_PART: Final = 8
# Groups that one join may drive out: a large one must not cost the loop thousands of small ones.
_MOST_AT_ONCE: Final = 100
_WARNING_PAUSE_S: Final = 60.0


class GroupMemory:
    """See the module's text."""

    def __init__(self, max_bytes: int, clock: Clock) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._clock = clock
        # Of groups that have members, or expect some.
        self._sizes: dict[Group, int] = {}
        # In the order in which they came; and those above an eighth.
        self._never_synced: dict[Group, None] = {}
        self._large: dict[Group, None] = {}
        self._warned_s: float | None = None

    def note(self, group: Group) -> None:
        """Take note of what a group takes now."""
        size = group.size_bytes if (group.members or group.pending) and not group.is_dead else 0
        self.held_bytes += size - self._sizes.pop(group, 0)
        if size:
            self._sizes[group] = size
        _keep(self._never_synced, group, size > 0 and not group.is_stored)
        _keep(self._large, group, size * _LARGEST_PART > self._max_bytes)

    def groups_in_the_way(self, group: Group | None, more_bytes: int) -> list[Group]:
        """Return which groups have to go so that ``group`` may take so much more; nearly always none.

        Raises CoordinatorNotAvailable when there is not enough room even without them.
        """
        missing = self.held_bytes + more_bytes - self._max_bytes
        if missing <= 0:
            return []
        own = 0 if group is None else self._sizes.get(group, 0)
        if (own + more_bytes) * _LARGEST_PART <= self._max_bytes:
            found = []
            for other in (*self._never_synced, *self._large):
                if other is group or other in found:
                    continue
                found.append(other)
                missing -= self._sizes[other]
                if missing <= 0:
                    self._warn(found[0])
                    return found
                if len(found) == _MOST_AT_ONCE:
                    break
        if self._sizes:
            self._warn_full()
        raise CoordinatorNotAvailable(
            f"members of groups take {self.held_bytes} bytes already, allowed are {self._max_bytes} "
            "(group.coordinator.max.bytes)"
        )

    def _warn(self, group: Group) -> None:
        if self._may_warn():
            why = "which has never synced" if group in self._never_synced else f"more than 1/{_LARGEST_PART} of it"
            logger.warning(
                "members of groups take %d bytes of %d (group.coordinator.max.bytes); another group needs room, and "
                "group %.200r (%d bytes, %s) goes; its members can join again",
                self.held_bytes, self._max_bytes, group.group_id, self._sizes[group], why,
            )  # fmt: skip

    def _warn_full(self) -> None:
        if self._may_warn():
            largest = max(self._sizes, key=self._sizes.__getitem__)
            logger.warning(
                "members of groups take %d bytes of %d (group.coordinator.max.bytes), and others cannot join; the "
                "largest is group %.200r with %d bytes in %d members",
                self.held_bytes, self._max_bytes, largest.group_id, self._sizes[largest], len(largest.members),
            )  # fmt: skip

    def _may_warn(self) -> bool:
        now_s = self._clock.monotonic_s()
        if self._warned_s is not None and now_s - self._warned_s < _WARNING_PAUSE_S:
            return False
        self._warned_s = now_s
        return True


def _keep(groups: dict[Group, None], group: Group, is_one: bool) -> None:
    if is_one:
        groups.setdefault(group)
    else:
        groups.pop(group, None)
