"""A line plot as an SVG file, both axes logarithmic: as much as a page of figures needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 280, 40, 50
_COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b8860b")


class Series(NamedTuple):
    """A named line: points (x, y), both above 0."""

    name: str
    points: Sequence[tuple[float, float]]


def write_plot(path: Path, title: str, x_label: str, y_label: str, series: Sequence[Series]) -> None:
    """Write the plot; y goes from a power of ten to another, x from the first point to the last."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    left, right = math.log10(min(xs)), math.log10(max(xs))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - left) / ((right - left) or 1)
        up = (math.log10(y) - low) / ((high - low) or 1)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    def text(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" '
        'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        text((_WIDTH - _RIGHT + _LEFT) / 2, 20, title),
        text((_WIDTH - _RIGHT + _LEFT) / 2, _HEIGHT - 10, x_label),
        text(_LEFT - 10, _TOP - 10, y_label, "end"),
    ]
    for power in range(low, high + 1):
        x, y = place(min(xs), 10.0**power)
        parts.append(f'<line x1="{x}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(x - 8, y + 4, f"{10.0**power:g}", "end"))
    for at in sorted(set(xs)):
        x, y = place(at, 10.0**low)
        parts.append(text(x, y + 18, f"{at:,.0f}"))
    for number, one in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [place(x, y) for x, y in one.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(f'<g fill="{colour}">{text(_WIDTH - _RIGHT + 12, _TOP + 20 * number, one.name, "start")}</g>')
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
