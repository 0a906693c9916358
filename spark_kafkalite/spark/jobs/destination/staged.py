"""What a run has staged: the facts that its commit publishes."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafkalite.spark.jobs.destination.manifest import LoadedRange, PublishedFile


@dataclass(frozen=True, slots=True)
class Staged:
    """What a run wrote to its staging directory, and what became of every offset of its plan.

    ``quarantine`` are the files of records that could not be decoded. ``event_time_fallbacks`` counts records in
    ``files`` without the event time that was asked for, ``early_event_times`` those with one of the first months of
    1970, as a number of seconds is if it is taken for milliseconds.
    """

    files: tuple[PublishedFile, ...] = ()
    ranges: tuple[LoadedRange, ...] = ()
    records_without_timestamp: int = 0
    quarantine: tuple[PublishedFile, ...] = ()
    event_time_fallbacks: int = 0
    early_event_times: int = 0

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)
