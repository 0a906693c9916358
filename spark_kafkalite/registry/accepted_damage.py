"""Offsets that a leader's log lacks and that an operator has accepted as lost, as a partition's state names them. Pure.

The state node has them as ``accepted_damage``: ``{"incarnation":"I","ranges":[[START,END],...]}``, END exclusive. They
belong to one log, that of incarnation I and of later ones that have proven to have it (rule R12), and hold until
another log leads. So they survive a restart of the leader. They do not cover later damage of another log, nor of this
one once it has been copied again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.model import Incarnation
from spark_kafkalite.registry.node_json import MAX_INT64, array, mapping, number

# As many as a log is said to lack; more would make a state node large.
MOST_RANGES: Final = 64

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AcceptedDamage:
    """See the module's text."""

    incarnation: Incarnation
    ranges: Ranges

    def covers(self, start: int, end: int) -> bool:
        """Whether all of a range is accepted. Damage of a log beyond that was never accepted."""
        return any(first <= start and end <= last for first, last in self.ranges)

    def fields(self) -> dict[str, Any]:
        """Return what the node holds; the incarnation as text, as all of them are."""
        return {"incarnation": str(self.incarnation), "ranges": [list(each) for each in self.ranges]}

    @classmethod
    def read(cls, value: Any) -> AcceptedDamage | None:
        """Return the value of the node's field, None for none. Raises ValueError, KeyError or TypeError."""
        if value is None:
            return None
        fields = mapping(value)
        incarnation = Incarnation(number(fields["incarnation"], 1, MAX_INT64))
        return cls(incarnation, checked_ranges((start, end) for start, end in array(fields["ranges"])))


def checked_ranges(pairs: Any) -> Ranges:
    """Return ranges that ascend and do not meet, at most MOST_RANGES. Raises ValueError."""
    ranges = tuple((number(start, 0, MAX_INT64), number(end, 0, MAX_INT64)) for start, end in pairs)
    if len(ranges) > MOST_RANGES:
        raise ValueError(f"{len(ranges)} ranges are more than {MOST_RANGES}")
    for (start, end), (following, _) in itertools.pairwise([*ranges, (MAX_INT64, MAX_INT64)]):
        if not start < end <= following:
            raise ValueError(f"the range {start} to {end} is empty, or does not come before {following}")
    return ranges
