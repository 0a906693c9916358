"""The rights of the registry's files: its nodes hold secrets, so only the user of the broker may read them.

New files get 0600 with their first byte, and new directories 0700. What an older version or a person has left wider is
narrowed at a start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path
from typing import Final

_LOG = logging.getLogger(__name__)

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
# All files of the registry, and those that SQLite adds, begin so.
_PREFIX: Final = "registry"


def create_empty(path: Path) -> None:
    """Make a file for SQLite, which gives its other files the rights of this one. No error when it exists, or when it
    cannot be made: SQLite then reports that itself."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))


def narrow(directory: Path) -> None:
    """Take from all others the rights on the registry's files, and on a directory that holds nothing else.

    Logs one line that names what was open, and one for a file whose rights cannot be changed.
    """
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except OSError:  # what it means for the registry, opening its files will say
        return
    files = [each for each in entries if each.name.startswith(_PREFIX) and each.is_file(follow_symlinks=False)]
    opened = [Path(each.path) for each in files]
    if len(files) == len(entries):
        opened.append(directory)
    narrowed = [str(path) for path in opened if _narrow_one(path)]
    if narrowed:
        _LOG.warning(
            "other users of this host could read or change %s, which hold secrets of the cluster; they are closed to "
            "others now. If others use this host, make new secrets: inter.broker.secret.file, registry.listener.digest",
            ", ".join(narrowed),
        )


def _narrow_one(path: Path) -> bool:
    """Narrow one; return whether it was open to others."""
    try:
        found = path.stat()
        wanted = DIRECTORY_MODE if stat.S_ISDIR(found.st_mode) else FILE_MODE
        if not stat.S_IMODE(found.st_mode) & ~wanted & 0o077:
            return False
        path.chmod(stat.S_IMODE(found.st_mode) & wanted)
    except OSError as error:
        _LOG.warning(
            "%s holds secrets of the cluster, and others may read it: %s; chmod go-rwx it", path, error.strerror
        )
        return False
    return True
