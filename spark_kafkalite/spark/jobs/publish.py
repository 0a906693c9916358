"""Makes staged files the published ones, so that a crash at any instant leaves a run wholly done or not done at all.

Order of a run: the plan goes into ``_kafkalite/staging/RUN``; Spark writes there; the manifest's rename commits; the
files move to their final names; the staging directory goes. Before the commit nothing lies outside ``_kafkalite/``.
After it, the staging directory is the sign that moves are still to be done: :func:`recover` does them again (each is
idempotent) and runs at the start of every load. A staging directory that no manifest names belongs to a run that died
before its commit and is deleted.

One load at a time per destination. A second one takes the first one's staging directory for that of a dead run and
deletes it, so the first fails; two that commit the same number cannot both: the later one finds the manifest there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from spark_kafkalite.spark.jobs.files import FileExists, Files
from spark_kafkalite.spark.jobs.manifest import (
    MANIFESTS,
    STAGING,
    Manifest,
    ManifestError,
    NextOffsets,
    manifest_numbers,
    manifest_path,
    read_manifest,
    staging_path,
)
from spark_kafkalite.spark.jobs.planning import Plan
from spark_kafkalite.spark.jobs.staging import Staged


@dataclass(frozen=True, slots=True)
class Recovery:
    """What :func:`recover` found: the newest manifest, files that it moved, dead runs whose leftovers it deleted."""

    newest: Manifest | None
    moved: int
    discarded: tuple[str, ...]


def new_run() -> str:
    """Return a name for a run: the time, for the reader, and something unique."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}"


def newest_manifest(files: Files) -> Manifest | None:
    """Return the last committed manifest, None when nothing has been published. Raises ManifestError."""
    numbers = manifest_numbers(files.names(MANIFESTS))
    if not numbers:
        return None
    path = manifest_path(numbers[-1])
    return read_manifest(files.read(path), path)


def recover(files: Files) -> Recovery:
    """Complete the last committed run and delete what runs that never committed have left behind."""
    newest = newest_manifest(files)
    moved = move_files(files, newest) if newest is not None and files.exists(newest.staging) else 0
    left = files.names(STAGING)
    for run in left:
        files.delete(staging_path(run))
    return Recovery(newest, moved, tuple(run for run in left if newest is None or run != newest.run))


def write_plan(files: Files, run: str, plan: Plan) -> None:
    """Write down what the run is going to read, before it reads."""
    files.write_new(f"{staging_path(run)}/plan.json", plan.to_json())


def commit(files: Files, run: str, plan: Plan, staged: Staged, previous: Manifest | None) -> Manifest:
    """Publish a staged run: write its manifest (the commit), move its files, delete its staging directory.

    Raises ManifestError when another run committed in the meantime; nothing of this run is published then.
    """
    next_offsets: NextOffsets = dict(previous.next_offsets) if previous is not None else {}
    next_offsets.update({r.topic_partition: r.until for r in plan.ranges})
    manifest = Manifest(
        number=previous.number + 1 if previous is not None else 1,
        run=run,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files=staged.files,
        next_offsets=next_offsets,
        records=staged.records,
        records_without_timestamp=staged.records_without_timestamp,
    )
    try:
        files.write_new(manifest.path, manifest.to_json())
    except FileExists:
        raise ManifestError(
            f"another run published manifest {manifest.number} under {files.root} while this one was working; "
            "nothing of this run was published; run again"
        ) from None
    move_files(files, manifest)
    files.delete(manifest.staging)
    return manifest


def move_files(files: Files, manifest: Manifest) -> int:
    """Move the manifest's staged files to their final names and return how many were still to be moved.

    Raises ManifestError when a file is in neither place.
    """
    moved = 0
    for file in manifest.files:
        # Once the final name is there the move was made: staged files and their final names are one to one.
        if files.exists(file.final):
            continue
        try:
            files.rename_new(file.staged, file.final)
        except FileNotFoundError:
            raise ManifestError(
                f"{manifest.path} names {file.final}, which is neither there nor at {file.staged} under {files.root}: "
                "somebody deleted it; restore it, or remove it from the manifest"
            ) from None
        moved += 1
    return moved
