"""Sizes, durations and shares on the jobs' command lines: ``256m``, ``1g``, ``90s``, ``2h``, ``0.1%``."""

from __future__ import annotations

import re
from typing import Final

import click

from spark_kafkalite.client.group.offset_resets import parse_duration_ms
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.spark.jobs.quarantine import MaxQuarantined

# As in Spark's settings: binary units. Source: org.apache.spark.network.util.JavaUtils.byteSuffixes.
_BYTES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE: Final = re.compile(r"([0-9]+)([kmgt]?)(?:i?b)?", re.ASCII)


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
    """Milliseconds from a number of seconds, or from a duration such as 90s, 10m or PT1H."""

    name = "DURATION"

    def __init__(self, least_ms: int = 0, most_ms: int | None = None) -> None:
        self._least_ms = least_ms
        self._most_ms = most_ms

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        try:
            found_ms = parse_duration_ms(f"{text}s" if text.isdecimal() else text)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if found_ms < self._least_ms or (self._most_ms is not None and found_ms > self._most_ms):
            bounds = f"at least {self._least_ms / 1000:g} s"
            if self._most_ms is not None:
                bounds += f" and at most {self._most_ms / 1000:g} s"
            self.fail(f"{text} is {found_ms / 1000:g} s: must be {bounds}", param, ctx)
        return found_ms


class Share(click.ParamType[MaxQuarantined]):
    """A number of records, or a part of all in percent: ``100``, ``0.1%``."""

    name = "N|P%"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> MaxQuarantined:
        try:
            return value if isinstance(value, MaxQuarantined) else MaxQuarantined.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
