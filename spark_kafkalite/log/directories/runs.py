"""Which earlier runs of a broker have lost nothing: the proof that the next run can give for its logs (rule R12).

A run of the broker's process is its incarnation, a random number. At its start, when the logs are loaded, each log
directory gets ``kafkalite-run``. The file names the run and the boot of the kernel under which it writes (the pages of
a killed process stay with the kernel). It also names the ids of all directories that the run uses, and the earlier runs
that were proven then. All that such a run has written exists at the next start if

* every directory of ``log.dirs`` is in use, none is missing, and each has the file,
* the files agree, and name exactly these directories (else one of several was replaced, or came back from earlier),
* and the kernel has lived on since, and each file is the one that the run has written; or every directory has the
  marker of a clean stop.

Left out are logs that lack something according to loading (``loaded_log.LoadedLog``), could not be opened, or have
vanished. The broker removes itself from the registry's states of these before it registers what it proves
(``broker.replication.unproven_logs``). Meanwhile there is no file, so a crash proves nothing.

A directory may be restored from a copy that was made while the run went on: then the kernel has lived on, and what the
run wrote later is missing. So the file names itself (``File.identity``), which distinguishes it from a copy. Logs that
are copied over those of a directory, with the file left as it was, cannot be recognised: docs/operations.md asks to
remove it. The logs of a broker that was stopped in order may be moved by copying them.

The marker is written by the last run only, and taken by the next, so the file need not state how the run has ended. A
directory that fails takes the proof from the others: pages that a failed sync has dropped are gone under the same
kernel too. Then the files are removed, also from the failed disk, as far as it lets itself be written.

A start that proves a run also proves the runs that were proven then, up to MOST_PROVEN runs. A state of the registry
that names an older one counts as a state without a proven run.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.log.directories.disk import text_of
from spark_kafkalite.log.directories.log_dirs import LogDirectories
from spark_kafkalite.log.directories.siblings import find_siblings
from spark_kafkalite.log.files.fs import Fs, replace_file
from spark_kafkalite.log.files.small_files import RUN_FILE, CheckpointError, read_small
from spark_kafkalite.log.log_starts import LogStarts
from spark_kafkalite.model import Incarnation
from spark_kafkalite.records.layout import MAX_INT64

logger = logging.getLogger(__name__)

MOST_PROVEN: Final = 16
# With more such logs at a start no earlier run is proven: each of them is taken out of a state of the registry.
MOST_NOT_WHOLE: Final = 1_000
_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"


class Run(NamedTuple):
    """The content of ``kafkalite-run``. ``boot_id`` is empty where the system has none, and in a copy of the file."""

    incarnation: Incarnation
    boot_id: str
    directories: frozenset[str]
    proven: tuple[Incarnation, ...]


def boot_id() -> str:
    """Return the id of this boot of the kernel, "" where the system has none. Source: random(4), proc(5)."""
    try:
        with open(_BOOT_ID_FILE, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def proven_runs(found: Mapping[str, Run | None], boot_id: str, *, stopped_in_order: bool) -> tuple[Incarnation, ...]:
    """Return the runs whose writes are all there, the last one first; none without a proof.

    ``found`` has the content of each log directory's file, by the directory's id; None: there is none, or it cannot be
    read. ``stopped_in_order``: every directory has the marker of a clean stop. Pure.
    """
    runs = set(found.values())
    run = runs.pop() if runs else None
    if run is None or runs or run.directories != found.keys():
        return ()
    if not stopped_in_order and (not boot_id or run.boot_id != boot_id):
        return ()
    return (run.incarnation, *run.proven)[:MOST_PROVEN]


def read_run(fs: Fs, directory: str) -> Run | None:
    """Return the content of the file in a log directory, None when there is none, or it is damaged (which is
    logged)."""
    path = f"{directory}/{RUN_FILE}"
    try:
        fields = json.loads(read_small(fs, path))
        incarnation, boot_id = _incarnation(fields["incarnation"]), str(fields["boot_id"])
        is_copy = fields.get("file") != fs.open(path).identity()
        return Run(
            incarnation,
            "" if is_copy else boot_id,
            frozenset(map(str, fields["directories"])),
            tuple(map(_incarnation, fields["proven"])),
        )
    except FileNotFoundError:
        return None
    except (CheckpointError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("%s cannot be read (%s); the logs in %s count as not proven to be whole", path, error, directory)
        return None


def write_run(fs: Fs, directory: str, run: Run) -> None:
    """Replace the file in a log directory. OSError as it comes from the disk."""
    fields: dict[str, object] = {
        "version": 0,
        "incarnation": str(run.incarnation),
        "boot_id": run.boot_id,
        "directories": sorted(run.directories),
        "proven": [str(each) for each in run.proven],
    }
    path = f"{directory}/{RUN_FILE}"
    replace_file(fs, path, lambda file: json.dumps({**fields, "file": file.identity()}).encode())


def _incarnation(text: object) -> Incarnation:
    number = int(str(text))
    if not 0 < number <= MAX_INT64:
        raise ValueError(f"{number} is no incarnation")
    return Incarnation(number)


class Runs:
    """The files of all log directories."""

    def __init__(self, fs: Fs, directories: LogDirectories, log_starts: LogStarts) -> None:
        self._fs = fs
        self._directories = directories
        self._log_starts = log_starts
        # Whether every directory has the marker of a clean stop; one without logs is clean without a word.
        self.stopped_in_order = True

    def proven(self, boot_id: str, not_whole: int) -> tuple[Incarnation, ...]:
        """Return the earlier runs of the broker that have lost nothing but so many logs, which are ``not_whole``, the
        last run first. To be called once, when the logs are loaded. What is against it is logged."""
        away = [each.path for each in self._directories if each.offline is not None]
        away += self._directories.missing.values()
        why = f"log directory {away[0]} is not in use" if away else ""
        if not why and not_whole > MOST_NOT_WHOLE:
            why = f"{not_whole} logs lack records, have damage, are missing or could not be opened"
        found = {directory_id: read_run(self._fs, path) for path, directory_id in self._in_use().items()}
        proven = () if why else proven_runs(found, boot_id, stopped_in_order=self.stopped_in_order)
        if not proven and any(found.values()):
            logger.warning(
                "the logs are not proven to be whole: %s; partitions with other replicas are led by those until this "
                "broker has caught up",
                why or "the last stop was not in order, or the log directories were not used together, or are copies",
            )
        return proven

    def begin(self, incarnation: Incarnation, boot_id: str, proven: tuple[Incarnation, ...]) -> None:
        """Note that this run of the broker writes from now on, and that it proves these earlier ones."""
        in_use = self._in_use()
        run = Run(incarnation, boot_id, frozenset(in_use.values()), proven)
        for path in in_use:
            directory = self._directories[path]
            try:
                directory.persist(partial(write_run, self._fs, path, run))
                directory.persist(partial(self._log_starts.begin, path))
            except OSError as error:
                # Then the next run proves nothing of this one; the one before it has the word in this directory still.
                logger.warning("cannot write %s/%s: %s", path, RUN_FILE, text_of(error))

    def forget(self) -> None:
        """Have no earlier run proven, also by a later start, until :meth:`begin`, as far as the disks let themselves be
        written."""
        for directory in self._directories:
            with contextlib.suppress(OSError, KafkaliteError):
                self._fs.unlink(f"{directory.path}/{RUN_FILE}")
                self._fs.sync_directory(directory.path)

    def _in_use(self) -> dict[str, str]:
        """Return the directories that are in use, by path, each with its id."""
        present = find_siblings(self._fs, [each.path for each in self._directories]).present
        ids = {path: directory_id for directory_id, path in present.items()}
        return {each.path: ids[each.path] for each in self._directories.online if each.path in ids}
