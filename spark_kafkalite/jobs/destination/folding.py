"""Folds old manifests into a checkpoint, and deletes them after a time, so that their number costs nothing.

A checkpoint (``manifests.manifest_checkpoint``) appears in one step and never changes. It has the content of all
manifests up to its number, so two runs that fold the same manifests write the same file. This module deletes a manifest
only if a checkpoint contains it, oldest first. So a reader, which begins at the newest checkpoint, finds every manifest
wherever this stops. A reader with an older listing lists the directory again if a file is gone. The newest manifest
stays: the next run continues from it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.manifests.files import FileExists, Files
from spark_kafkalite.manifests.manifest import (
    MANIFESTS,
    STAGING,
    ManifestError,
    manifest_numbers,
    manifest_path,
)
from spark_kafkalite.manifests.manifest_checkpoint import (
    checkpoint_numbers,
    checkpoint_path,
    checkpoint_text,
)

EVERY: Final = 100
KEEP_MS: Final = 30 * 86_400_000


def fold(files: Files, keep_ms: int = KEEP_MS, every: int = EVERY) -> int:
    """Write a checkpoint once ``every`` manifests exist after the last one; return how many were folded.

    Then also delete the manifests and checkpoints that the new one contains and that were written more than ``keep_ms``
    before it. Raises ManifestError for damaged ones.
    """
    names = files.names(MANIFESTS)
    numbers = manifest_numbers(names)
    earlier = checkpoint_numbers(names)
    last = earlier[-1] if earlier else 0
    # A run that has not finished its moves is not folded: its staging directory has to be found by its manifest.
    if not numbers or numbers[-1] - last < every or files.names(STAGING):
        return 0
    newest = numbers[-1]
    text = checkpoint_text(newest, (each for each in publish.manifests(files) if each.number <= newest))
    with suppress(FileExists):
        files.write_new(checkpoint_path(newest), text)
    # The file system's clock on both sides.
    now_ms = files.modified_ms(checkpoint_path(newest))
    for paths in ([manifest_path(each) for each in numbers[:-1]], [checkpoint_path(each) for each in earlier]):
        for path in paths:
            written_ms = files.modified_ms(path)
            if now_ms is None or (written_ms is not None and now_ms - written_ms < keep_ms):
                break
            files.delete(path)
    return newest - last


def problem_of_folding(files: Files, keep_ms: int) -> str | None:
    """Fold as :func:`fold` does; return the error as text. The run has published, so the error does not fail it."""
    try:
        fold(files, keep_ms)
    except ManifestError as error:
        return str(error)
    return None
