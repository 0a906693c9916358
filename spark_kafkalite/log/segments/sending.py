"""Ranges of a segment's file that are being sent, so that a truncation can call off those that it cuts.

A truncation frees the place of what it cuts for other records. An answer that was found before, and is sent after,
would hand out those, or the end of one batch and the beginning of another.
"""

from __future__ import annotations

from typing import Protocol


class Range(Protocol):
    """Bytes of the file that are on their way. The sender checks ``is_cut`` before each step."""

    position: int
    length: int
    is_cut: bool


class Sending:
    """The ranges of one segment that are being sent; it goes with the file when the segment is sealed.

    ``cuts``: how often the file has been cut. What was found before a cut and is not being sent yet is cut, too.
    """

    __slots__ = ("_ranges", "cuts")

    def __init__(self) -> None:
        # None until the first one, which most segments never see.
        self._ranges: set[Range] | None = None
        self.cuts = 0

    def __len__(self) -> int:
        return len(self._ranges) if self._ranges is not None else 0

    def begin(self, one: Range) -> None:
        """Count a range that is going to be sent, until its :meth:`end`."""
        if self._ranges is None:
            self._ranges = set()
        self._ranges.add(one)

    def end(self, one: Range) -> None:
        """Count a range no longer: it has been sent, or dropped."""
        if self._ranges is not None:
            self._ranges.discard(one)

    def cut(self, position: int) -> None:
        """Call off every range that reaches beyond a position, because the file ends there from now on."""
        self.cuts += 1
        # A copy, made at once: a truncation's thread comes here as well, when all this has been done by the loop.
        for one in list(self._ranges or ()):
            if one.position + one.length > position:
                one.is_cut = True
