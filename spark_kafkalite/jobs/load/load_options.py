"""The options of a load: for all topics, and others for some of them.

Options of single topics are in a TOML file, under the topic's name or a pattern (the first that matches the whole name
applies), with the names of the command line:

    [topics."clicks"]
    partition-by = "hour"
    late = "reopen"

    [topics."audit-.*"]
    format = "orc"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from os.path import isfile
from pathlib import Path
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from spark_kafkalite.jobs.destination.folding import KEEP_MS
from spark_kafkalite.jobs.formats.file_layout import FileLayout
from spark_kafkalite.jobs.load.accounting import HolePolicy
from spark_kafkalite.jobs.load.completeness import LatePolicy
from spark_kafkalite.jobs.load.planning import LoadPolicies
from spark_kafkalite.jobs.load.quarantine import NONE_QUARANTINED, MaxQuarantined
from spark_kafkalite.jobs.program.client_options import source_options

_LAYOUT: Final = (
    "partition_by",
    "file_format",
    "codec",
    "time_zone",
    "file_bytes",
    "value",
    "value_schema",
    "event_time",
    "schema_registry",
)
DRIVER_BYTES: Final = 16 << 20
TableKind = Literal["none", "delta"]
_POLICIES: Final = ("on_out_of_range", "on_recreated_topic", "new_partitions")
_OTHERS: Final = ("on_hole", "late", "grace_ms", "max_quarantined", "table")


@dataclass(frozen=True, slots=True)
class RunBounds:
    """How much a run takes at most; None is no bound. Bytes are those of the log, and a soft bound."""

    max_bytes: int | None = None
    max_records: int | None = None
    max_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What may differ from topic to topic."""

    layout: FileLayout = field(default_factory=FileLayout)
    policies: LoadPolicies = field(default_factory=LoadPolicies)
    on_hole: HolePolicy = "fail"
    late: LatePolicy = "append"
    grace_ms: int = 600_000
    max_quarantined: MaxQuarantined = NONE_QUARANTINED
    table: TableKind = "none"

    def changed(self, given: Mapping[str, Any]) -> TopicOptions:
        """Return the options with others of these names."""
        return replace(
            self,
            layout=replace(self.layout, **{name: given[name] for name in _LAYOUT if name in given}),
            policies=replace(self.policies, **{name: given[name] for name in _POLICIES if name in given}),
            **{name: given[name] for name in _OTHERS if name in given},
        )


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a run is asked for. ``topics`` are names; ``pattern`` is one of names, None without one.

    Plans of up to ``driver_bytes`` of the log are done in the driver, see ``driver_staging``. ``change_layout`` allows
    another layout of files than a topic has, see ``layout_changes``.
    """

    bootstrap_server: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    client: Mapping[str, str] = field(default_factory=dict)
    usual: TopicOptions = field(default_factory=TopicOptions)
    by_pattern: tuple[tuple[str, TopicOptions], ...] = ()
    bounds: RunBounds = field(default_factory=RunBounds)
    keep_manifests_ms: int = KEEP_MS
    driver_bytes: int = DRIVER_BYTES
    change_layout: bool = False

    @property
    def source(self) -> dict[str, str]:
        """The options of the reading source."""
        return {"kafka.isolation.level": "read_committed", **source_options(self.bootstrap_server, self.client)}

    @property
    def topic_options(self) -> tuple[TopicOptions, ...]:
        """All options that some topic may have."""
        return (self.usual, *(each for _, each in self.by_pattern))

    def of_topic(self, topic: str) -> TopicOptions:
        """Return what holds for one topic."""
        return next((each for pattern, each in self.by_pattern if re.fullmatch(pattern, topic)), self.usual)

    def tables_of(self, topics: Iterable[str], made: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the layouts of the topics that are tables, by topic. ``made`` are those that are tables already."""
        return {
            topic: of_topic.layout.document()
            for topic in topics
            if (of_topic := self.of_topic(topic)).table == "delta" or topic in made
        }

    def unmatched(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Return the options whose pattern, or name of a topic, none of the topics has: it may be mistyped."""
        names = tuple(topics)
        patterns = {f'[topics."{pattern}"] of --topic-config': pattern for pattern, _ in self.by_pattern}
        if self.pattern is not None:
            patterns[f"--topic-pattern {self.pattern}"] = self.pattern
        return tuple(
            option for option, pattern in patterns.items() if not any(re.fullmatch(pattern, name) for name in names)
        )


def named_pattern(text: str, option: str) -> str:
    """Return a pattern of topic names. Raises click.BadParameter for one that is none."""
    try:
        re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"{text!r} is not a regular expression: {error}", param_hint=option) from None
    return text


def time_zone(text: str, option: str = "--time-zone") -> str:
    """Return an IANA time zone. Raises click.BadParameter for one that this system does not know."""
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise click.BadParameter(
            f"{text!r} is no time zone of this system; name one as Europe/Berlin or UTC", param_hint=option
        ) from None
    return text


def schema_text(given: str | None, option: str = "--value-schema") -> str | None:
    """Return a schema that was given, itself or as a file, on one line.

    Raises click.BadParameter for a file that cannot be read.
    """
    if given is None:
        return None
    try:
        text = Path(given).read_text(encoding="utf-8") if isfile(given) else given
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{given}: {_reason(error)}", param_hint=option) from None
    return " ".join(text.split())


def _reason(error: OSError | ValueError) -> str:
    """Return what is wrong with a file, without its name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def topic_options_of(
    path: str, usual: TopicOptions, known: Mapping[str, tuple[str, Callable[[Any], Any]]]
) -> tuple[tuple[str, TopicOptions], ...]:
    """Return the options of a file, by pattern, in the file's order.

    ``known`` has, by the command line's names without dashes in front, the name of each option here and what makes its
    value of a text. Raises click.BadParameter naming the file, the topic, the option and the value.
    """
    hint = "--topic-config"
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{path}: {_reason(error)}", param_hint=hint) from None
    topics = document.get("topics")
    if set(document) != {"topics"} or not isinstance(topics, dict):
        raise click.BadParameter(f'{path}: sections are named [topics."NAME OR PATTERN"], no others', param_hint=hint)
    found = []
    for pattern, given in topics.items():
        where = f'{path}, [topics."{pattern}"]'
        if not isinstance(given, dict):
            raise click.BadParameter(f"{where} is not a section of options", param_hint=hint)
        values = {}
        for name, value in given.items():
            if name not in known:
                raise click.BadParameter(
                    f"{where}: {name} is no option of a topic; there are {', '.join(sorted(known))}", param_hint=hint
                )
            own, make = known[name]
            try:
                # A number is what it is on the command line.
                values[own] = make(str(value))
            except click.UsageError as error:
                raise click.BadParameter(f"{where}, {name}: {error.message}", param_hint=hint) from None
        found.append((named_pattern(pattern, where), usual.changed(values)))
    return tuple(found)
