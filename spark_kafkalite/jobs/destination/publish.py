"""The commit of a load publishes its staged files. A crash leaves a run wholly published or not at all.

A run has these steps. It writes its plan into ``_kafkalite/staging/RUN``. Spark writes the files there. The rename of
the manifest commits. The files move to their final names. The staging directory is deleted. Before the commit nothing
lies outside ``_kafkalite/``. After it, the staging directory shows that moves may be left. :func:`recover` runs at the
start of every load and repeats these moves; each is idempotent. Other staging directories belong to runs that have not
committed.

The lease (``lease``) lets one run at a time work in a destination. Two may still run, if the first was paused, lost its
lease and wakes up. Then the number of the manifest protects the records: a run commits with the number after the newest
manifest that its recovery read, and each number is used once. A recovery that finds staging directories of others

1. lists them;
2. takes the next number with a manifest of no files, the fence;
3. deletes the directories that it has listed.

A listed run read its newest manifest before the fence existed. So its own number is that of the fence or a lower one,
and it cannot commit any more. If it committed before the fence, the fence's number is taken. Then the recovery starts
over and completes that run's moves. A run that begins after the listing is not in the list. So a run that wakes up

- in its recovery completes moves of committed runs, and deletes only directories that it listed before its fence. If it
  has no fence yet, it finds that it has lost its lease;
- after its plan, while it stages, or before its manifest fails at its commit at the latest, if another run took its
  number, as every run does that deletes its files. If none did, its plan is still valid, and it commits;
- after its manifest finds that the other run has moved its files, and succeeds. It checks each move that failed. If a
  file is in neither place, a newer manifest shows that all moves were done, because its run began with a recovery.

No run stages under the run name of a fence, because a manifest whose run has a staging directory has moves left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.jobs.load.completeness import SUCCESS, Directories
from spark_kafkalite.jobs.load.planning import LoadPlan
from spark_kafkalite.jobs.program.faults import FaultInjected, fault_point
from spark_kafkalite.manifests.files import FileExists, Files
from spark_kafkalite.manifests.manifest import (
    HOME,
    MANIFESTS,
    STAGING,
    TAKEOVER,
    LoadedTopic,
    Manifest,
    ManifestError,
    PublishedFile,
    Staged,
    manifest_numbers,
    manifest_path,
    replaced_path,
    staging_path,
    topic_layout,
)
from spark_kafkalite.manifests.manifest_checkpoint import (
    checkpoint_numbers,
    checkpoint_path,
    read_checkpoint,
)
from spark_kafkalite.manifests.manifest_reader import read_manifest


@dataclass(frozen=True, slots=True)
class Recovery:
    """What :func:`recover` found: the newest manifest, files that it moved, dead runs whose leftovers it deleted.

    ``renamed`` counts the files that :func:`show_hidden_files` renamed. ``newest`` is the fence, if there is one.
    """

    newest: Manifest | None
    moved: int
    discarded: tuple[str, ...]
    renamed: int = 0


def new_run() -> str:
    """Return a name for a run: the time, for the reader, and something unique."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}"


def newest_manifest(files: Files) -> Manifest | None:
    """Return the last committed manifest, None when nothing has been published. Raises ManifestError."""
    names = files.names(MANIFESTS)
    numbers, folded = manifest_numbers(names), checkpoint_numbers(names)
    _check_row(files, numbers, folded[-1] if folded else 0)
    return _read(files, numbers[-1]) if numbers else None


def newest_number(files: Files) -> int:
    """Return the number of the newest manifest, 0 when nothing has been published."""
    return max(manifest_numbers(files.names(MANIFESTS)), default=0)


def manifests(files: Files) -> list[Manifest]:
    """Return all committed manifests, oldest first. Raises ManifestError.

    Those up to the newest checkpoint come from the checkpoint (``manifests.manifest_checkpoint``).
    """
    return _manifests(files, whole=False)[0]


def manifests_after(files: Files, number: int) -> list[Manifest]:
    """Return the committed manifests with numbers above ``number``, oldest first. Raises ManifestError.

    It reads no more than these, unless a checkpoint has some of them.
    """
    names = files.names(MANIFESTS)
    numbers, folded = manifest_numbers(names), checkpoint_numbers(names)
    if folded and folded[-1] > number:
        return [each for each in manifests(files) if each.number > number]
    _check_row(files, numbers, folded[-1] if folded else 0)
    return [_read(files, each) for each in numbers if each > number]


def whole_manifests(files: Files) -> tuple[list[Manifest], frozenset[int]]:
    """Return all committed manifests, oldest first, each from its own file if that still exists.

    Also returns the numbers of those that only a checkpoint has.
    """
    return _manifests(files, whole=True)


def _manifests(files: Files, *, whole: bool) -> tuple[list[Manifest], frozenset[int]]:
    names = files.names(MANIFESTS)
    while True:
        try:
            return _listed_manifests(files, names, whole)
        except FileNotFoundError:
            # Folded since, and deleted: a newer checkpoint has it.
            before, names = names, files.names(MANIFESTS)
            if names == before:
                raise


def _listed_manifests(files: Files, names: list[str], whole: bool) -> tuple[list[Manifest], frozenset[int]]:
    numbers, folded = manifest_numbers(names), checkpoint_numbers(names)
    last = folded[-1] if folded else 0
    _check_row(files, numbers, last)
    found: dict[int, Manifest] = {}
    if last:
        path = checkpoint_path(last)
        found = {each.number: each for each in read_checkpoint(_read_text(files, path), f"{files.root}/{path}", last)}
    found |= {number: _read(files, number) for number in numbers if whole or number > last}
    return [found[number] for number in sorted(found)], frozenset(found) - frozenset(numbers)


def _check_row(files: Files, numbers: list[int], folded: int) -> None:
    """Raise ManifestError if a manifest after the newest checkpoint, or the newest of all, is missing."""
    later = [number for number in numbers if number > folded]
    lacking = set(range(folded + 1, later[-1] if later else 0)) - set(later)
    if folded and not later and folded not in numbers:
        lacking = {folded}
    if lacking:
        raise ManifestError(
            f"{files.root}/{manifest_path(min(lacking))} is not there, and no checkpoint holds it: restore it from a "
            "copy, or load into another destination"
        )


def _read(files: Files, number: int) -> Manifest:
    path = manifest_path(number)
    return read_manifest(_read_text(files, path), f"{files.root}/{path}", number)


def _read_text(files: Files, path: str) -> str:
    try:
        return files.read(path)
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{files.root}/{path} is damaged: byte {error.start} is not UTF-8: restore the file from a copy, or load "
            "into another destination"
        ) from error


def recover(files: Files, run: str | None = None, check: Callable[[], None] = lambda: None) -> Recovery:
    """Complete the last committed run and delete what runs that never committed have left behind.

    ``run`` is the name of the recovering run. ``check`` raises if another run holds the destination; it is called
    before staged files of others are deleted. This also renames files of older versions, see :func:`show_hidden_files`.
    """
    run = run or new_run()
    moved = renamed = 0
    while True:
        newest = newest_manifest(files)
        if newest is not None and newest.may_have_hidden_files:
            renamed += show_hidden_files(files, [file for manifest in manifests(files) for file in manifest.files])
        if newest is not None:
            moved += finish(files, newest)
        left = tuple(files.names(STAGING))
        if not left:
            return Recovery(newest, moved, left, renamed)
        fault_point("recovery")
        check()
        fence = _fence(run, newest)
        try:
            files.write_new(fence.path, fence.to_json())
        except FileExists:
            continue
        for each in left:
            fault_point("recovery")
            files.delete(staging_path(each))
        return Recovery(fence, moved, left, renamed)


def _fence(run: str, newest: Manifest | None) -> Manifest:
    """Return a manifest of no files, with the number that runs need that have not committed."""
    return Manifest(
        number=_next_number(newest),
        run=f"{run}-fence",
        created=_now(),
        files=(),
        topics=newest.topics if newest is not None else {},
        records=0,
        records_without_timestamp=0,
        kind=TAKEOVER,
    )


def _next_number(newest: Manifest | None) -> int:
    return newest.number + 1 if newest is not None else 1


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_plan(files: Files, run: str, plan: LoadPlan) -> None:
    """Write the run's plan, before the run reads."""
    files.write_new(f"{staging_path(run)}/plan.json", plan.to_json())


@contextmanager
def dropped_on_failure(files: Files, run: str) -> Iterator[None]:
    """Delete what the run has staged if the block fails. The block must end before the manifest is written.

    After that, a write may have succeeded although its answer was lost. The next run deletes what cannot be deleted
    now, as it does after a killed run.
    """
    try:
        yield
    except FaultInjected:
        # It simulates a kill, which deletes nothing.
        raise
    except BaseException:
        with suppress(Exception):
            files.delete(staging_path(run))
        raise


def commit(
    files: Files,
    run: str,
    plan: LoadPlan,
    staged: Staged,
    previous: Manifest | None,
    directories: Directories | None = None,
    layout: Mapping[str, str] | None = None,
) -> Manifest:
    """Publish a staged run: write its manifest (the commit), move its files, delete its staging directory.

    ``directories``: which become complete; None marks none.

    Raises DestinationHeld if another run committed or took the destination over in the meantime, and ManifestError if
    another file has the name of one of the run's files. Then no file of this run is published.
    """
    loaded: Mapping[str, LoadedTopic] = previous.topics if previous is not None else {}
    topics = plan.topics if directories is None else directories.topics
    manifest = Manifest(
        number=_next_number(previous),
        run=run,
        created=_now(),
        files=staged.files,
        topics={**loaded, **topics},
        records=staged.records,
        records_without_timestamp=staged.records_without_timestamp,
        ranges=staged.ranges,
        completed=() if directories is None else directories.completed,
        reopened=() if directories is None else directories.reopened,
        layout=layout or {},
        lost=plan.lost,
        recreated=plan.recreated,
        adopted_ids=plan.adopted_ids,
        quarantine=staged.quarantine,
        event_time_fallbacks=staged.event_time_fallbacks,
    )
    manifest = replace(manifest, topics={**manifest.topics, **_with_layouts(manifest)})
    publish_manifest(files, manifest)
    return manifest


def _with_layouts(manifest: Manifest) -> dict[str, LoadedTopic]:
    """Return the topics of which the run has files, with the layout of these."""
    return {
        topic: replace(manifest.topics[topic], layout=topic_layout(manifest.layout_of(topic)))
        for topic in {file.topic for file in manifest.files}
        if topic in manifest.topics
    }


def publish_manifest(files: Files, manifest: Manifest) -> None:
    """Write the manifest, which is the commit, and do what follows. Raises as :func:`commit` does."""
    with dropped_on_failure(files, manifest.run):
        try:
            _check_places(files, manifest)
        except ManifestError:
            # What is in a place may have been published by the run that took the number.
            if newest_number(files) < manifest.number:
                raise
        if newest_number(files) >= manifest.number:
            raise _overtaken(files, manifest)
        fault_point("staged")
    try:
        files.write_new(manifest.path, manifest.to_json())
    except FileExists:
        # After a lost answer the client of the file system repeats the call, and finds the run's own manifest.
        if _read(files, manifest.number).run != manifest.run:
            raise _overtaken(files, manifest) from None
    fault_point("manifest")
    finish(files, manifest)


def finish(files: Files, manifest: Manifest) -> int:
    """Do the steps after a commit, each of which can be repeated; return how many files were still to be moved.

    If the run's staging directory is gone, this does nothing: another run has done the steps, and directories may have
    become complete since. A directory that is opened again loses its mark before it gets files. A complete one gets its
    mark after its files. Replaced files move away before their replacements appear, so that no listing shows a record
    twice. Raises ManifestError as :func:`move_files` does.
    """
    if not files.exists(manifest.staging):
        return 0
    for directory in manifest.reopened:
        files.delete(f"{directory}/{SUCCESS}")
    _move_replaced(files, manifest)
    moved = move_files(files, manifest)
    for directory in manifest.completed:
        with suppress(FileExists):
            files.write_new(f"{directory}/{SUCCESS}", "")
    files.delete(manifest.staging)
    return moved


def _overtaken(files: Files, manifest: Manifest) -> DestinationHeld:
    """Delete what this run has staged and can no longer publish. Return the error for it."""
    with suppress(Exception):
        files.delete(manifest.staging)
    return DestinationHeld(
        f"{files.root}: another run took over and made manifest {manifest.number} while this one ({manifest.run}) was "
        "working; this run has published no file; run again when that one has ended"
    )


def _move_replaced(files: Files, manifest: Manifest) -> None:
    for path in manifest.replaced:
        # One that is gone was moved before, or deleted by hand: its records are in the files that replace it.
        try:
            with suppress(FileNotFoundError):
                files.rename_new(path, replaced_path(manifest.run, path))
        except FileExists:
            raise ManifestError(
                f"{manifest.path} (run {manifest.run}) replaces {path}, which was moved away, but under {files.root} "
                "there is another file of that name: move it away and run again"
            ) from None


def _check_places(files: Files, manifest: Manifest) -> None:
    """Raise ManifestError unless every final name is free: after the commit it would be too late."""
    by_place: dict[str, PublishedFile] = {}
    for file in manifest.moved_files:
        other = by_place.setdefault(file.final, file)
        if other is not file:
            raise ManifestError(
                f"{file.staged} and {other.staged} would both become {file.final}; nothing was published"
            )
        if files.exists(file.final):
            raise ManifestError(
                f"{file.final} is under {files.root} already, and no manifest names it; nothing was published: move it "
                "away, or load into another destination"
            )
    by_folded: dict[str, str] = {}
    for topic in manifest.topics:
        other_topic = by_folded.setdefault(topic.lower(), topic)
        # The run's own staging directory exists; under another case it does only where case makes no difference.
        if other_topic != topic and files.exists(manifest.staging.upper()):
            raise ManifestError(
                f"topics {other_topic} and {topic} differ in case only, but names under {files.root} do not depend on "
                "case; nothing was published: load them into destinations of their own"
            )


def move_files(files: Files, manifest: Manifest) -> int:
    """Move the manifest's staged files to their final names and return how many were still to be moved.

    Raises ManifestError if a file is in neither place, or another file has its final name.
    """
    moved = 0
    for file in manifest.moved_files:
        if files.exists(file.final) and not files.exists(file.staged):
            continue
        try:
            files.rename_new(file.staged, file.final)
        except FileExists:
            raise ManifestError(
                f"{manifest.path} (run {manifest.run}) names {file.final}, but another file has that name under "
                f"{files.root}, and the run's own is at {file.staged}: move the other one away and run again"
            ) from None
        except FileNotFoundError:
            # Another run has moved it meanwhile. After the run of a newer manifest, it may have been merged away, too.
            if files.exists(file.final) or newest_number(files) > manifest.number:
                continue
            raise ManifestError(
                f"{manifest.path} (run {manifest.run}) names {file.final}, which is neither there nor at {file.staged} "
                f"under {files.root}: it was deleted; restore it, or remove it from the manifest and lower the "
                f"manifest's records by {file.records}"
            ) from None
        moved += 1
        fault_point("moved-one")
    return moved


def show_hidden_files(files: Files, published: Iterable[PublishedFile]) -> int:
    """Rename files that an older version published under hidden names, which programs skip, to today's names.

    Each is one rename, and a rename that was done before is skipped. So this can be stopped and repeated, also by
    several runs at once. Returns how many files were renamed. A file that is in neither place is skipped, too.
    """
    renamed = 0
    directories: set[str] = set()
    for file in published:
        if file.hidden_final is None:
            continue
        directory = file.hidden_final.rpartition("/")[0]
        while directory and directory != HOME:
            directories.add(directory)
            directory = directory.rpartition("/")[0]
        if files.exists(file.final):
            continue
        try:
            files.rename_new(file.hidden_final, file.final)
        except (FileNotFoundError, FileExists):
            continue
        renamed += 1
    # Also those that are empty because this was stopped before.
    for directory in sorted(directories, reverse=True):
        if files.exists(directory) and not files.names(directory):
            files.delete(directory)
    return renamed
