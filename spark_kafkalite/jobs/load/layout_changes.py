"""Whether a run may write a topic's files in the layout that its options ask for. A run decides that before it writes.

Two things make a destination unreadable as one DataFrame: values of a topic whose types have no common one, and a field
that goes away or gets another name. A run that brings either fails. New fields are taken (``formats/schema_merge.py``).
Another format, another zone and other directories stay readable, but programs that list directories meet both. So a run
needs ``--change-layout`` for these.

The newest manifest has each topic's layout. For a topic of a destination that an older version has written, the layout
comes from all manifests, once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.jobs.formats.file_layout import CODECS
from spark_kafkalite.jobs.formats.schema_merge import SchemaConflict, merged, missing_fields
from spark_kafkalite.manifests.manifest import COMPACT, Manifest, PublishedFile, topic_layout
from spark_kafkalite.manifests.names import file_format_of
from spark_kafkalite.spark.conditions import listed

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

ValueForm = tuple[str, str | None]
# What --change-layout allows to differ: names in manifests, and options.
_OPTIONS: Final = {"format": "--format", "partition_by": "--partition-by", "time_zone": "--time-zone"}
# What a Delta table does not take with --change-layout either.
_KEPT_BY_TABLES: Final = frozenset({"format", "partition_by"})
_FORMATS: Final = {"txt": "text"}
_SHOWN_SCHEMA: Final = 1_000


class LayoutChangeRefused(ConfigError):
    """A run would write files of a topic that do not fit the existing ones."""


@dataclass(frozen=True, slots=True)
class WrittenLayout:
    """How the files of a topic were written: the layout of the newest, and all forms of values, oldest first."""

    layout: Mapping[str, str]
    forms: tuple[ValueForm, ...]

    @classmethod
    def of(cls, layout: Mapping[str, str]) -> WrittenLayout:
        """Return what a manifest keeps with a topic; an empty layout is that of a topic without files."""
        return cls(layout, (value_form(layout),) if layout else ())


def value_form(layout: Mapping[str, str]) -> ValueForm:
    """Return ``--value`` and ``--value-schema`` of a layout in a manifest."""
    return layout.get("value", "bytes"), layout.get("value_schema")


def layout_of_file(manifest: Manifest, file: PublishedFile) -> dict[str, str]:
    """Return the layout of a file. What older manifests do not have comes from the file's path."""
    labels = [part.partition("=")[0] for part in file.directory.split("/")[1:] if "=" in part]
    ending = file_format_of(file.final)
    by_path = {
        "format": _FORMATS.get(ending, ending),
        "partition_by": labels[-1] if labels else "none",
        "value": "bytes",
    }
    return topic_layout({**by_path, **manifest.layout_of(file.topic)})


def written_layouts(published: Iterable[tuple[Manifest, PublishedFile]]) -> dict[str, WrittenLayout]:
    """Return the layouts of all topics with files; the files are in the order of their runs."""
    layouts: dict[str, dict[str, str]] = {}
    forms: dict[str, list[ValueForm]] = {}
    seen: set[tuple[int, str]] = set()
    for manifest, file in published:
        # One file of a run tells for all of them: there may be very many.
        if (manifest.number, file.topic) in seen:
            continue
        seen.add((manifest.number, file.topic))
        layout = layout_of_file(manifest, file)
        # A compaction keeps the layout of what it merges, which may not be the newest.
        if manifest.kind != COMPACT or file.topic not in layouts:
            layouts[file.topic] = layout
        known = forms.setdefault(file.topic, [])
        if value_form(layout) not in known:
            known.append(value_form(layout))
    return {topic: WrittenLayout(layout, tuple(forms[topic])) for topic, layout in layouts.items()}


def merged_type(forms: Iterable[ValueForm], type_of: Callable[[ValueForm], DataType]) -> DataType:
    """Return the type of values that all forms have in common. Raises SchemaConflict."""
    first, *others = forms
    found = type_of(first)
    for each in others:
        _check_same_value(first, each)
        found = merged(found, type_of(each), "value")
    return found


def _check_same_value(one: ValueForm, other: ValueForm) -> None:
    """Raise SchemaConflict for another ``--value``: the columns of JSON and of a registry's frame have no relation."""
    if one[0] != other[0]:
        raise SchemaConflict("value", f"of --value {one[0]}", f"of --value {other[0]}")


def check_layouts(
    destination: str,
    written: Mapping[str, WrittenLayout],
    asked: Mapping[str, Mapping[str, str]],
    type_of: Callable[[ValueForm], DataType],
    *,
    change_layout: bool = False,
    tables: Collection[str] = (),
) -> None:
    """Raise LayoutChangeRefused, which names the first topic, if a topic is not to be written as it is asked for.

    ``asked`` are the layouts of the run, by topic, as manifests have them. ``type_of`` returns the type of values.
    ``tables`` are the topics that are Delta tables.
    """
    problems = {}
    for topic, layout in asked.items():
        known = written.get(topic)
        if known is None or not known.forms:
            continue
        problem = _problem(known, layout, type_of, change_layout, is_table=topic in tables)
        if problem is not None:
            problems[topic] = problem
    if problems:
        topic, *others = problems
        more = f" (refused as well: {listed(others)})" if others else ""
        raise LayoutChangeRefused(f"topic {topic} in {destination}: {problems[topic]}; nothing was written{more}")


def _problem(
    known: WrittenLayout,
    asked: Mapping[str, str],
    type_of: Callable[[ValueForm], DataType],
    change_layout: bool,
    *,
    is_table: bool,
) -> str | None:
    form = value_form(asked)
    if known.forms != (form,):
        problem = _value_problem(known, form, type_of)
        if problem is not None:
            return problem
    if change_layout:
        return None
    # Without directories of time the zone has no effect.
    names = [name for name in _OPTIONS if name != "time_zone" or asked.get("partition_by") != "none"]
    changed = [name for name in names if name in known.layout and known.layout[name] != asked.get(name)]
    if not changed:
        return None
    is_there = " ".join(f"{_OPTIONS[name]} {known.layout[name]}" for name in changed)
    wanted = " ".join(f"{_OPTIONS[name]} {asked.get(name)}" for name in changed)
    if is_table and not _KEPT_BY_TABLES.isdisjoint(changed):
        return (
            f"its files were written with {is_there}, and this run has {wanted}: give {is_there}, because a Delta "
            "table keeps its format and directories, or load the topic into a new destination"
        )
    # Earlier versions also wrote formats that this one only reads.
    is_writable = known.layout.get("format", "parquet") in CODECS
    again = f"give {is_there}, or, to write" if is_writable else "to write"
    return (
        f"its files were written with {is_there}, and this run has {wanted}: {again} new files with {wanted} and leave "
        f"the others as they are, {'' if is_writable else 'give '}--change-layout"
    )


def _value_problem(known: WrittenLayout, asked: ValueForm, type_of: Callable[[ValueForm], DataType]) -> str | None:
    forms = known.forms
    try:
        there = merged_type(forms, type_of)
    except SchemaConflict:
        # An older version did not prevent that. The run must not make it worse.
        forms = (value_form(known.layout),)
        there = type_of(forms[0])
    wanted = type_of(asked)
    try:
        _check_same_value(forms[0], asked)
        merged(there, wanted, "value")
        problem = _missing(list(missing_fields(there, wanted, "value")))
    except SchemaConflict as error:
        problem = f"field {error.field} is {error.before} in its files and {error.after} in this run"
    if problem is None:
        return None
    is_there = shown_form(forms[0]) if len(forms) == 1 else f"values of type {_cut(there.simpleString())}"
    return (
        f"{problem}; a run may only add fields. Its files have {is_there}, and this run has {shown_form(asked)}: give "
        "a schema that has all fields of the files, or load the topic into a new destination"
    )


def _missing(missing: list[str]) -> str | None:
    if not missing:
        return None
    fields = f"{'fields' if len(missing) > 1 else 'field'} {listed(missing)}"
    return f"{fields} of its files would not be in those of this run"


def shown_form(form: ValueForm) -> str:
    """Return the options of a form of values."""
    value, schema = form
    return f"--value {value}" if schema is None else f"--value {value} --value-schema '{_cut(schema)}'"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_SCHEMA else f"{text[:_SHOWN_SCHEMA]}..."
