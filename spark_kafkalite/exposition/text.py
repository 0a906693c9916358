"""Prometheus' text format, version 0.0.4: families, series and their labels. Pure.

Source: prometheus.io, "Exposition formats". Label values may hold any text; a backslash, a quote and a newline in them
are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram"]
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(**values: object) -> str:
    """Return the labels of a series as its line has them, ``{topic="a",partition="0"}``; none give an empty text."""
    if not values:
        return ""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items()) + "}"


def open_labels(label_text: str) -> str:
    """Return the text of labels as it begins where others follow: ``{topic="a",``. They end with a brace."""
    return f"{label_text[:-1]}," if label_text else "{"


def number(value: float) -> str:
    """Return a value as the format has it."""
    return repr(value) if isinstance(value, float) else str(int(value))


class LabelBlock:
    """The labels of series of which several families have one each, in the same order; a family's lines are then made
    from the whole numbers at once, in a third of the time of single lines."""

    __slots__ = ("_pieces", "size")

    def __init__(self, label_texts: Iterable[str]) -> None:
        # Between two of them the family's name goes.
        self._pieces = ["", *(f"{text.replace('%', '%%')} %d\n" for text in label_texts)]
        self.size = len(self._pieces) - 1

    def lines(self, name: str, values: Sequence[int]) -> str:
        """Return a line for each value, of the first labels if there are fewer values than labels."""
        return name.join(self._pieces[: len(values) + 1]) % tuple(values)


class Page:
    """What one scrape gets. Families with labels take up to ``max_series`` series in all, and ``max_chars`` of text;
    further series are dropped."""

    def __init__(self, max_series: int, max_chars: int | None = None) -> None:
        self._lines: list[str] = []
        self._max_series = max_series
        self._room_chars = max_chars
        # Series with labels, and those that were dropped.
        self.series = 0
        self.dropped = 0

    def family(self, name: str, kind: Kind, text: str) -> None:
        """Begin a family; its series follow."""
        self._lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")

    def one(self, name: str, kind: Kind, text: str, value: float) -> None:
        """Add a family with one series that has no labels."""
        self._lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {number(value)}\n")

    def add(self, name: str, label_text: str, value: float) -> None:
        """Add a series with the text that :func:`labels` returned."""
        if self.series >= self._max_series:
            self.dropped += 1
            return
        self._take(f"{name}{label_text} {number(value)}\n", 1)

    def extend(self, name: str, series: Sequence[tuple[str, int]]) -> None:
        """Add many series, label texts and whole numbers: as :meth:`add`, in a third of the time."""
        room = self._max_series - self.series
        if len(series) > room:
            self.dropped += len(series) - room
            series = series[:room]
        self._take("".join([f"{name}{label_text} {value:d}\n" for label_text, value in series]), len(series))

    def extend_block(self, name: str, block: LabelBlock, values: Sequence[int]) -> None:
        """Add a series for each of a block's labels, with a whole number each."""
        room = max(0, self._max_series - self.series)
        if block.size > room:
            self.dropped += block.size - room
            values = values[:room]
        self._take(block.lines(name, values), len(values))

    def _take(self, text: str, series: int) -> None:
        if self._room_chars is not None:
            if len(text) > self._room_chars:
                self.dropped += series
                return
            self._room_chars -= len(text)
        self.series += series
        self._lines.append(text)

    def histogram(
        self, name: str, names: dict[str, object], buckets: Iterable[tuple[float, int]], total: float
    ) -> None:
        """Add one histogram: the counts of ``buckets`` by their upper bounds, not cumulated, the last for what is
        larger (bound infinity); ``total`` is the sum of what was observed."""
        label_text = labels(**names)
        begin = open_labels(label_text)
        count, series = 0, []
        for bound, observed in buckets:
            count += observed
            le = "+Inf" if bound == float("inf") else number(bound)
            series.append((f'{begin}le="{le}"}}', count))
        self.extend(f"{name}_bucket", series)
        self.add(f"{name}_sum", label_text, float(total))
        self.add(f"{name}_count", label_text, count)

    def text(self) -> str:
        """Return the whole text."""
        return "".join(self._lines)

    def taken(self) -> Iterator[str]:
        """Yield the text in pieces, each of which the page forgets."""
        lines, self._lines = self._lines, []
        lines.reverse()
        while lines:
            yield lines.pop()
