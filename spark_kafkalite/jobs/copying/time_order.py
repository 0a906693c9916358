"""How the offsets of a replay by time differ from its time range, and the sentence that the job prints of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TimeCounts:
    """Records of some offsets that are ``inside`` and ``outside`` of a time range; estimates unless ``counted``."""

    inside: int = 0
    outside: int = 0
    counted: bool = True


@dataclass(frozen=True, slots=True)
class TimeOrder:
    """The counts of the ``planned`` offsets, and of those ``behind`` them, None if no time ends the plan.

    ``exact``: the replay writes only the records that are in the time range.
    """

    planned: TimeCounts
    behind: TimeCounts | None
    exact: bool

    @property
    def counted(self) -> bool:
        """Whether no number is an estimate."""
        return self.planned.counted and (self.behind is None or self.behind.counted)

    @property
    def missed(self) -> int:
        """Records of the time range that lie behind the planned offsets."""
        return 0 if self.behind is None else self.behind.inside

    @property
    def differs(self) -> bool:
        """Whether the planned offsets have other records, or lack records of the time range."""
        return bool(self.planned.outside or self.missed)

    def document(self) -> dict[str, Any]:
        """Return the numbers as ``--json`` prints them."""
        return {
            "exact_time": self.exact,
            "records_in_time": self.planned.inside,
            "records_outside": self.planned.outside,
            "records_behind": self.missed,
            "counted": self.counted,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> TimeOrder:
        """Return what :meth:`document` printed."""
        counted = document["counted"]
        return cls(
            TimeCounts(document["records_in_time"], document["records_outside"], counted),
            TimeCounts(inside=document["records_behind"], counted=counted),
            document["exact_time"],
        )

    def sentence(self) -> str:
        """Return the numbers as people read them."""
        about = "" if self.counted else "about "
        total = self.planned.inside + self.planned.outside
        if self.exact:
            return f"{about}{self.planned.inside} of these {about}{total} records are in the time range"
        if not self.differs:
            found = "was found in samples of the log" if about else "is in the log"
            return f"no record out of time order {found}: these offsets are the time range"
        parts = []
        if self.planned.outside:
            parts.append(f"{about}{self.planned.outside} of these {about}{total} records are outside of the time range")
        if self.missed:
            where = "them" if parts else "these offsets"
            parts.append(f"{about}{self.missed} records of the range lie behind {where}")
        return f"{', and '.join(parts)}; see --exact-time"
