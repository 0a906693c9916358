"""Which published files ``read_published`` reads: those of a topic, of some days, and of the runs after one. Pure.

The manifests show all of this: a file's day is in its path, its run is that of its manifest. The file of a compaction
has the records of the runs whose files it replaced. If some of these runs are before the one that a reader names and
some after it, the file cannot be chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from spark_kafkalite.manifests.manifest import COMPACT, Manifest, ManifestError, PublishedFile
from spark_kafkalite.spark.conditions import listed

Published = list[tuple[Manifest, PublishedFile]]
Days = str | date | Iterable[str | date]

_DAY: Final = re.compile(r"[+]?\d{4,}-\d{2}-\d{2}", re.ASCII)
_NUMBER: Final = re.compile(r"(?:.*/)?0*(\d+)(?:\.json)?", re.ASCII)
_LABELS: Final = ("day", "hour")


@dataclass(frozen=True, slots=True)
class PublishedScope:
    """What is to be read. None takes all; ``days`` are as in the names of directories."""

    topic: str | None = None
    days: frozenset[str] | None = None
    since_run: str | None = None

    @classmethod
    def of(cls, topic: str | None, days: Days | None, since_run: str | int | None) -> PublishedScope:
        """Return the scope of what a caller gives. Raises ValueError for a day that is none."""
        since = None if since_run is None else str(since_run)
        return cls(topic, None if days is None else _day_names(days), since)


def _day_names(days: Days) -> frozenset[str]:
    found = set()
    for each in [days] if isinstance(days, str | date) else days:
        text = each if isinstance(each, str) else f"{each:%Y-%m-%d}"
        if not _DAY.fullmatch(text):
            raise ValueError(f"days={each!r}: a day is a date or a text such as 2026-01-31")
        found.add(text)
    return frozenset(found)


def labels_of(file: PublishedFile) -> tuple[tuple[str, str], ...]:
    """Return the day and the hour in the path of a file, each with its name; empty for one without a day."""
    parts = (part.partition("=") for part in file.directory.split("/")[1:])
    return tuple((name, value) for name, _, value in parts if name in _LABELS)


def of_topic(root: str, published: Published, topic: str | None) -> Published:
    """Return the files of a topic. Raises FileNotFoundError, which names the topics that have files, without any."""
    if topic is None:
        return published
    found = [(manifest, file) for manifest, file in published if file.topic == topic]
    if not found:
        topics = listed(sorted({file.topic for _, file in published}))
        raise FileNotFoundError(f"{root}: no load run has published records of topic {topic} here; there are {topics}")
    return found


def of_days(root: str, published: Published, days: frozenset[str] | None) -> Published:
    """Return the files of some days. Raises ValueError if a file lies in no directory of a day."""
    if days is None:
        return published
    found = []
    for manifest, file in published:
        label = dict(labels_of(file)).get("day")
        if label is None:
            raise ValueError(
                f"days=: {root} has files that are of no day, such as {file.final}, because --partition-by none "
                "wrote them; leave out days, and compare the column timestamp"
            )
        if label in days:
            found.append((manifest, file))
    return found


def number_of_run(root: str, since_run: str, manifests: Sequence[Manifest]) -> int:
    """Return the number of the manifest that a run's name, a number or the path of a manifest stands for.

    Raises ManifestError if there is no such run.
    """
    by_name = {manifest.run: manifest.number for manifest in manifests}
    if since_run in by_name:
        return by_name[since_run]
    newest = max(by_name.values(), default=0)
    number = _NUMBER.fullmatch(since_run)
    if number is not None and int(number[1]) <= newest:
        return int(number[1])
    raise ManifestError(
        f"since_run={since_run!r}: {root} has no such run, or none of its files since they were merged; its newest is "
        f"{newest}. Give the name of a run, or the number of its manifest"
    )


def since(
    root: str, published: Published, number: int, manifests: Sequence[Manifest], folded: frozenset[int]
) -> Published:
    """Return the files of the runs after the one with this number.

    ``manifests`` are all, each as it was written if that is not in ``folded``. Raises ManifestError if a compaction has
    merged files of runs up to that one with files of later runs.
    """
    origins = _origins(manifests, folded)
    found = []
    for manifest, file in published:
        first, last = origins.get(file.final, (manifest.number, manifest.number))
        if last <= number:
            continue
        if first <= number:
            raise ManifestError(
                f"since_run={number}: in {root} a compaction ({manifest.path}, run {manifest.run}) has merged over it: "
                f"{file.final} has records of the runs {first} to {last}; read without since_run, or since run {last}"
            )
        found.append((manifest, file))
    return found


def _origins(manifests: Sequence[Manifest], folded: frozenset[int]) -> Mapping[str, tuple[int, int]]:
    """Return the first and the last run whose records a file may have, by its path."""
    found: dict[str, tuple[int, int]] = {}
    # Files of manifests that are gone are of runs up to the newest of these.
    last_folded = max(folded, default=0)
    for manifest in manifests:
        olds: dict[str, list[tuple[int, int]]] = {}
        for path in manifest.replaced:
            olds.setdefault(path.rpartition("/")[0], []).append(found.get(path, (1, last_folded)))
        for file in manifest.files:
            spans = [(manifest.number, manifest.number)]
            if manifest.kind == COMPACT:
                # A checkpoint does not say what a compaction has replaced.
                spans = olds.get(file.directory, [(1, manifest.number - 1)])
            found[file.final] = (min(first for first, _ in spans), max(last for _, last in spans))
    return found
