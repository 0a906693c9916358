"""Sizes, durations and shares on the jobs' command lines: ``256m``, ``1g``, ``90s``, ``2h``, ``0.1%``."""

from __future__ import annotations

import click

from spark_kafkalite.client.group.offset_resets import parse_duration_ms
from spark_kafkalite.errors import ConfigError, KafkaliteError
from spark_kafkalite.jobs.load.quarantine import MaxQuarantined
from spark_kafkalite.spark.options.offset_options import size_bytes


class Size(click.ParamType[int]):
    """Bytes, as in Spark's sizes: 10m."""

    name = "SIZE"

    def __init__(self, *, or_zero: bool = False) -> None:
        self._or_zero = or_zero

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if self._or_zero and str(value).strip() == "0":
            return 0
        try:
            return size_bytes("", str(value))
        except KafkaliteError:
            what = "no size; write 0, or" if self._or_zero else "no size above 0; write"
            self.fail(f"{str(value)!r} is {what} a whole number and k, m or g, such as 10m", param, ctx)


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
