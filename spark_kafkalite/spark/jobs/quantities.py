"""Sizes and durations on the jobs' command lines: ``256m``, ``1g``, ``90s``, ``2h``."""

from __future__ import annotations

import re
from typing import Final

import click

# As in Spark's settings: binary units. Source: org.apache.spark.network.util.JavaUtils.byteSuffixes, timeSuffixes.
_BYTES: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE: Final = re.compile(r"([0-9]+)([kmgt]?)(?:i?b)?", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]+)(ms|s|min|m|h|d)", re.ASCII)


class Size(click.ParamType[int]):
    """Bytes: a whole number above 0 with k, m, g or t, which are powers of 1,024."""

    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(str(value).strip().lower())
        if found is None or int(found[1]) == 0:
            self.fail(f"{str(value)!r} is not a size above 0 such as 256m or 1g", param, ctx)
        return int(found[1]) * _BYTES[found[2]]


class Duration(click.ParamType[int]):
    """Milliseconds: a whole number with ms, s, m, h or d."""

    name = "DURATION"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = _DURATION.fullmatch(str(value).strip().lower())
        if found is None:
            self.fail(f"{str(value)!r} is not a duration such as 90s, 10m or 2h", param, ctx)
        return int(found[1]) * _MILLISECONDS[found[2]]
