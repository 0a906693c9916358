"""A checkpoint replaces all manifests up to its number, so that a run does not read thousands of manifests. Pure.

The checkpoint's file is ``_kafkalite/manifests/N.checkpoint.jsonl``, N in 20 digits. Its first line counts the
following lines and their files. Each following line is the manifest of a run up to N that still has published files. It
lacks what only the next runs needed (offsets, ranges, complete directories, staged paths), and files that another run
has replaced. Its topics keep their ids. So a checkpoint contains every published file once. Checkpoints are checked as
strictly as manifests.

``folding`` writes checkpoints, ``publish.manifests`` reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, NoReturn

from spark_kafkalite.manifests.manifest import (
    DIGITS,
    MANIFESTS,
    STAGING,
    LoadedTopic,
    Manifest,
    ManifestError,
    PublishedFile,
)
from spark_kafkalite.manifests.manifest_reader import read_manifest

FORMAT: Final = 1
_NAME: Final = re.compile(rf"([0-9]{{{DIGITS}}})\.checkpoint\.jsonl", re.ASCII)
_COUNTS: Final = ("format", "number", "runs", "files")
_REMEDY: Final = "restore the file from a copy, or, if all manifests from 1 up to its number exist, delete it"


def checkpoint_path(number: int) -> str:
    """Return the path of the checkpoint of the manifests up to ``number``, relative to the destination."""
    return f"{MANIFESTS}/{number:0{DIGITS}d}.checkpoint.jsonl"


def checkpoint_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the checkpoints among the names in ``_kafkalite/manifests``, ascending."""
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def published_files(manifests: Iterable[Manifest]) -> list[tuple[Manifest, PublishedFile]]:
    """Return the published files, each with its run's manifest, without the files that a later run has replaced.

    The manifests must be in the order of their numbers.
    """
    found: dict[str, tuple[Manifest, PublishedFile]] = {}
    for manifest in manifests:
        for path in manifest.replaced:
            found.pop(path, None)
        found.update((file.final, (manifest, file)) for file in manifest.files)
    return list(found.values())


def checkpoint_text(number: int, manifests: Iterable[Manifest]) -> str:
    """Return the text of the checkpoint of ``manifests``: all manifests up to ``number``, oldest first."""
    by_number = {manifest.number: manifest for manifest in manifests}
    kept: dict[int, list[PublishedFile]] = {}
    for manifest, file in published_files(by_number.values()):
        kept.setdefault(manifest.number, []).append(file)
    counts = {"format": FORMAT, "number": number, "runs": len(kept), "files": sum(map(len, kept.values()))}
    lines = [json.dumps(counts) + "\n"]
    lines += (_folded(by_number[each], files).to_json(indent=None) for each, files in sorted(kept.items()))
    return "".join(lines)


def _folded(manifest: Manifest, files: list[PublishedFile]) -> Manifest:
    """Return the part of a manifest that a checkpoint keeps. A wrong count of records stays wrong."""
    gone = sum(file.records for file in manifest.files) - sum(file.records for file in files)
    topics = {file.topic for file in files}
    return replace(
        manifest,
        # The staged paths are not needed any more, and were the longest field of a file.
        files=tuple(replace(file, staged=f"{STAGING}/{number}") for number, file in enumerate(files)),
        records=manifest.records - gone,
        topics={
            topic: LoadedTopic(loaded.topic_id, {}, loaded.earlier_ids)
            for topic, loaded in manifest.topics.items()
            if topic in topics
        },
        ranges=(),
        lost=(),
        recreated=(),
        adopted_ids=(),
        completed=(),
        reopened=(),
        replaced=(),
    )


def read_checkpoint(text: str, path: str, number: int) -> list[Manifest]:
    """Return the manifests in a checkpoint's text, oldest first. Raises ManifestError, which names ``path``."""
    first, *lines = text.split("\n")
    counts = _counts(first, path)
    if counts["number"] != number:
        _refuse(path, f"number is {counts['number']}, not the {number} of the file's name")
    # The text after the last newline is empty, unless the last line was cut.
    if len(lines) != counts["runs"] + 1 or lines.pop():
        _refuse(path, f"it does not end after the {counts['runs']} lines that its first one counts, as when it was cut")
    found = [read_manifest(line, f"{path}, line {place}") for place, line in enumerate(lines, 2)]
    numbers = [manifest.number for manifest in found]
    if numbers != sorted(set(numbers)) or (numbers and numbers[-1] > number):
        _refuse(path, f"its runs are not in the order of their numbers, or one is beyond {number}")
    files = sum(len(manifest.files) for manifest in found)
    if files != counts["files"]:
        _refuse(path, f"it holds {files} files, and its first line counts {counts['files']}")
    return found


def _counts(line: str, path: str) -> dict[str, int]:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        _refuse(path, "its first line is not JSON")
    if type(found) is not dict or any(type(found.get(name)) is not int or found[name] < 0 for name in _COUNTS):
        _refuse(path, f"its first line does not give {', '.join(_COUNTS)} as whole numbers")
    if found["format"] > FORMAT:
        raise ManifestError(
            f"{path}: format {found['format']} is not {FORMAT}: a newer version wrote it; use that version, or a newer "
            "one, with this destination"
        )
    return {name: found[name] for name in _COUNTS}


def _refuse(path: str, problem: str) -> NoReturn:
    raise ManifestError(f"{path} is damaged: {problem}: {_REMEDY}")
