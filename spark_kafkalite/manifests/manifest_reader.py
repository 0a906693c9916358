"""Reads manifests strictly: checks the type and range of every field, and that every path is in the destination.

A manifest decides which offsets the next run loads and which files it moves. So the reader must refuse invalid numbers
and paths outside of the destination. For any difference to the form of :meth:`Manifest.to_json` it raises a
ManifestError, which names the file, the field, the value, and the remedy.

Pure: it uses neither a file system nor Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn, TypeVar

from spark_kafkalite.manifests.manifest import (
    FORMAT,
    FORMAT_WITHOUT_IDS,
    FORMAT_WITHOUT_RANGES,
    HOME,
    KINDS,
    LOAD,
    QUARANTINE,
    RANGE_FIELDS,
    STAGING,
    FilePart,
    LoadedRange,
    LoadedTopic,
    LostRange,
    Manifest,
    ManifestError,
    PublishedFile,
    RecreatedTopic,
)
from spark_kafkalite.manifests.names import directory_name, file_name, is_hidden
from spark_kafkalite.model import topic_name_problem

T = TypeVar("T")

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}", re.ASCII)
_MAX_SHOWN: Final = 100
_REMEDY: Final = "restore the file from a copy, or load into another destination"
_FILE_FIELDS: Final = frozenset(("staged", "final", "topic", "records", "size_bytes", "late", "offsets"))
_FILE_FIELDS_OF_ONE_PARTITION: Final = frozenset(
    ("staged", "final", "topic", "partition", "first_offset", "last_offset", "records", "size_bytes")
)


def read_manifest(text: str, path: str, number: int | None = None) -> Manifest:
    """Return the manifest in ``text``. Raises ManifestError, which names ``path``, for any other text.

    ``number``: the number in the file's name, None if the name has no number.
    """
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        problem = f"it is not JSON from line {error.lineno}, column {error.colno} on"
        raise ManifestError(f"{path} is damaged: {problem}, as when it has been cut: {_REMEDY}") from error
    except RecursionError:
        raise ManifestError(f"{path} is damaged: it is nested too deeply: {_REMEDY}") from None
    except ValueError as error:
        raise ManifestError(f"{path} is damaged: {error}: {_REMEDY}") from error
    return _Fields(path, "", document).manifest(number)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {_shown(next(each for each in names if names.count(each) > 1))} appears twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        return "a deep structure"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


class _Fields:
    """One object of a manifest, at ``place`` in it (empty for the whole manifest), and the checks of its fields."""

    def __init__(self, path: str, place: str, document: Any) -> None:
        self._path = path
        self._place = place
        if type(document) is not dict:
            self._refuse(place or "the whole", document, "an object")
        self._document: dict[str, Any] = document

    def _refuse(self, field: str, value: Any, wanted: str) -> NoReturn:
        problem = f"{field} is {_shown(value)}, not {wanted}"
        raise ManifestError(f"{self._path} is not a manifest of this program: {problem}: {_REMEDY}")

    def _within(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _value(self, name: str) -> Any:
        if name not in self._document:
            problem = f"it has no {self._within(name)}"
            raise ManifestError(f"{self._path} is not a manifest of this program: {problem}: {_REMEDY}")
        return self._document[name]

    # Values ---------------------------------------------------------------------------------------------------------

    def number(self, name: str, least: int = 0, most: int = _MAX_INT64) -> int:
        value = self._value(name)
        # Neither bool, which is a subclass of int, nor float.
        if type(value) is not int or not least <= value <= most:
            self._refuse(self._within(name), value, f"a whole number from {least} to {most}")
        return value

    def number_or_none(self, name: str) -> int | None:
        return None if self._value(name) is None else self.number(name)

    def text(self, name: str) -> str:
        return self._text(self._within(name), self._value(name))

    def _text(self, field: str, value: Any) -> str:
        if type(value) is not str or not value or not value.isprintable():
            self._refuse(field, value, "a text")
        return str(value)

    def part(self, name: str) -> str:
        """Return a text that is one part of a path."""
        value = self.text(name)
        if "/" in value or value in (".", ".."):
            self._refuse(self._within(name), value, "a name")
        return value

    def path(self, name: str) -> str:
        """Return a path with at least two parts, inside the destination."""
        return self._path_of(self._within(name), self._value(name))

    def _path_of(self, field: str, value: Any) -> str:
        parts = self._text(field, value).split("/")
        if len(parts) < 2 or not {"", ".", ".."}.isdisjoint(parts):
            self._refuse(field, value, "the path of a file or directory in a directory of the destination")
        return str(value)

    def flag(self, name: str) -> bool:
        value = self._value(name)
        if type(value) is not bool:
            self._refuse(self._within(name), value, "true or false")
        return value

    def one_of(self, name: str, known: Sequence[str]) -> str:
        value = self.text(name)
        if value not in known:
            self._refuse(self._within(name), value, f"one of {', '.join(known)}")
        return value

    def texts(self, name: str) -> dict[str, str]:
        """Return an object whose values are texts."""
        found = self._object(name)
        return {key: found.text(key) for key in found._document}

    def topic(self, name: str) -> str:
        return self._topic(self._within(name), self._value(name))

    def _topic(self, field: str, value: Any) -> str:
        if type(value) is not str or topic_name_problem(value) is not None:
            self._refuse(field, value, "a topic's name")
        return value

    def topic_id(self, name: str) -> str | None:
        return self._topic_id(self._within(name), self._value(name))

    def _topic_id(self, field: str, value: Any) -> str | None:
        if value is None or (type(value) is str and _TOPIC_ID.fullmatch(value)):
            return value
        self._refuse(field, value, "a topic's id of 22 characters, or null")

    def offsets(self, name: str) -> dict[int, int]:
        """Return next offsets by partition."""
        found = self._object(name)
        for partition in found._document:
            if not _PARTITION.fullmatch(partition) or int(partition) > _MAX_INT32:
                self._refuse(f"a key of {self._within(name)}", partition, "a partition")
        return {int(partition): found.number(partition) for partition in found._document}

    def _object(self, name: str) -> _Fields:
        return _Fields(self._path, self._within(name), self._value(name))

    def items(self, name: str, read: Callable[[str, Any], T]) -> tuple[T, ...]:
        """Return the items of a list. ``read`` converts each item, from its place and its value."""
        values = self._value(name)
        if type(values) is not list:
            self._refuse(self._within(name), values, "a list")
        return tuple(read(f"{self._within(name)}[{number}]", value) for number, value in enumerate(values))

    def objects(self, name: str, read: Callable[[_Fields], T]) -> tuple[T, ...]:
        return self.items(name, lambda place, value: read(_Fields(self._path, place, value)))

    # The parts of a manifest ----------------------------------------------------------------------------------------

    def manifest(self, number: int | None) -> Manifest:
        written = self._value("format")
        known = f"{FORMAT_WITHOUT_IDS}, {FORMAT_WITHOUT_RANGES} or {FORMAT}"
        if type(written) is not int or written < FORMAT_WITHOUT_IDS:
            self._refuse("format", written, known)
        if written > FORMAT:
            raise ManifestError(
                f"{self._path}: format {_shown(written)} is not {known}: a newer version wrote it; use that version, "
                "or a newer one, with this destination"
            )
        with_ids, with_ranges = written > FORMAT_WITHOUT_IDS, written > FORMAT_WITHOUT_RANGES
        found = self.number("number", 1)
        if number is not None and found != number:
            self._refuse("number", found, f"the {number} of the file's name")
        files = self.objects("files", lambda each: each.file(written))
        held_back = self.objects("quarantine", lambda each: each.file(written, QUARANTINE)) if with_ranges else ()
        moved = (*files, *held_back)
        for name, places in (("staged", [each.staged for each in moved]), ("final", [each.final for each in moved])):
            if len(set(places)) != len(places):
                seen: set[str] = set()
                twice = next(each for each in places if each in seen or seen.add(each))  # type: ignore[func-returns-value]
                self._refuse(f"{name} of two files", twice, "of one only")
        return Manifest(
            number=found,
            run=self.part("run"),
            created=self.text("created"),
            files=files,
            topics=self.topics(written),
            records=self.number("records"),
            records_without_timestamp=self.number("records_without_timestamp"),
            lost=self.objects("lost", _Fields.lost_range) if with_ids else (),
            recreated=self.objects("recreated", _Fields.recreated_topic) if with_ids else (),
            adopted_ids=self.items("adopted_ids", self._topic) if with_ids else (),
            ranges=self.objects("ranges", _Fields.loaded_range) if with_ranges else (),
            completed=self.items("completed", self._path_of) if with_ranges else (),
            reopened=self.items("reopened", self._path_of) if with_ranges else (),
            replaced=self.items("replaced", self._path_of) if with_ranges else (),
            layout=self.texts("layout") if with_ranges else {},
            kind=self.one_of("kind", KINDS) if with_ranges else LOAD,
            format=written,
            quarantine=held_back,
            event_time_fallbacks=self.number("event_time_fallbacks") if with_ranges else 0,
        )

    def topics(self, written: int) -> dict[str, LoadedTopic]:
        with_ids = written > FORMAT_WITHOUT_IDS
        name = "topics" if with_ids else "next_offsets"
        found = self._object(name)
        for topic in found._document:
            self._topic(f"a key of {name}", topic)
        if with_ids:
            return {topic: found._object(topic).loaded_topic(written) for topic in found._document}
        return {topic: LoadedTopic(None, found.offsets(topic)) for topic in found._document}

    def loaded_topic(self, written: int) -> LoadedTopic:
        with_times = written > FORMAT_WITHOUT_RANGES
        return LoadedTopic(
            self.topic_id("id"),
            self.offsets("next_offsets"),
            self.items("earlier_ids", self._topic_id),
            self.offsets("passed_ms") if with_times else {},
            self.items("open_directories", self._path_of) if with_times else (),
            self.texts("layout") if "layout" in self._document else None,
        )

    def loaded_range(self) -> LoadedRange:
        start = self.number("start")
        times = ("min_timestamp", "max_timestamp")
        counted = [name for name in RANGE_FIELDS if name not in ("topic", "partition", "start", "next_offset", *times)]
        found = LoadedRange(
            topic=self.topic("topic"),
            partition=self.number("partition", 0, _MAX_INT32),
            start=start,
            next_offset=self.number("next_offset", start),
            **{name: self.number(name) for name in counted},
            min_timestamp=self.number_or_none("min_timestamp"),
            max_timestamp=self.number_or_none("max_timestamp"),
            outside=self.number("outside") if "outside" in self._document else 0,
        )
        if found.difference:
            accounted = f"{found.next_offset - found.start} offsets, and accounts for {found.difference} less"
            self._refuse(self._place, accounted, "a range that accounts for every offset")
        return found

    def lost_range(self) -> LostRange:
        start = self.number("start")
        lost = LostRange(
            self.topic("topic"), self.number("partition", 0, _MAX_INT32), start, self.number("until", start)
        )
        self.number("offsets", lost.offsets, lost.offsets)
        return lost

    def recreated_topic(self) -> RecreatedTopic:
        return RecreatedTopic(
            self.topic("topic"), self.topic_id("earlier_id"), self.topic_id("id"), self.offsets("earlier_next_offsets")
        )

    def file(self, written: int, within: str | None = None) -> PublishedFile:
        """Return a file. Its final path must be in the directory ``within``, or, if that is None, outside of HOME."""
        with_parts = written > FORMAT_WITHOUT_RANGES
        fields = _FILE_FIELDS if with_parts else _FILE_FIELDS_OF_ONE_PARTITION
        unknown = self._document.keys() - fields
        if unknown:
            self._refuse(f"a field of {self._place}", min(unknown), f"one of {', '.join(sorted(fields))}")
        size_bytes = self._document.get("size_bytes")
        file = PublishedFile(
            staged=self.path("staged"),
            final=self.path("final"),
            topic=self.topic("topic"),
            parts=self.objects("offsets", lambda each: each.part_of_file("first", "last", "rows"))
            if with_parts
            else (self.part_of_file("first_offset", "last_offset", "records"),),
            size_bytes=None if size_bytes is None else self.number("size_bytes"),
            late=with_parts and self.flag("late"),
        )
        if with_parts:
            self.number("records", max(1, file.records), file.records)
        if not file.staged.startswith(f"{STAGING}/"):
            self._refuse(self._within("staged"), file.staged, f"a path in {STAGING}")
        if within is not None:
            if not file.final.startswith(f"{within}/"):
                self._refuse(self._within("final"), file.final, f"a path in {within}")
            return file
        # Format 1 put a topic named like HOME there.
        if file.final.startswith(f"{HOME}/") and (written > FORMAT_WITHOUT_IDS or file.topic != HOME):
            self._refuse(self._within("final"), file.final, f"a path outside of {HOME}")
        return _with_visible_name(file) if written == FORMAT_WITHOUT_IDS else file

    def part_of_file(self, first_name: str, last_name: str, records_name: str) -> FilePart:
        first = self.number(first_name)
        last = self.number(last_name, first)
        partition = self.number("partition", 0, _MAX_INT32)
        return FilePart(partition, first, last, self.number(records_name, 1, last - first + 1))


def _with_visible_name(file: PublishedFile) -> PublishedFile:
    """Return a file of format 1. If its path is hidden from programs, the file gets the path of the present format."""
    if not is_hidden(file.topic):
        return file
    times = file.final.split("/")[1:-1]
    (part,) = file.parts
    name = file_name(file.topic, part.partition, part.first_offset, part.last_offset)
    return replace(file, final="/".join([directory_name(file.topic), *times, name]), hidden_final=file.final)
