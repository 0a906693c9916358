"""Files that commands of the registry read."""

from __future__ import annotations

from pathlib import Path

import click


def read_digest(path: str | None) -> str | None:
    """Return the USER:PASSWORD in a file, None without one. Raises UsageError when it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise click.UsageError(f"--digest-file {path}: {error.strerror}") from error
