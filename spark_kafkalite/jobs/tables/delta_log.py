"""The log of a table, ``TOPIC/_delta_log``: reads its state, and writes commits through the destination's files.

A commit is ``N.json``, N counting from 0 in 20 digits. Each number is written once (``Files.write_new``), so two
writers never write the same version: one of them finds it taken, and reads the log again. A checkpoint
``N.checkpoint.parquet``, or all parts of ``N.checkpoint.P.Q.parquet``, replaces the commits up to N, which other
programs delete after a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_kafkalite.jobs.tables.delta_actions import Action
from spark_kafkalite.jobs.tables.table_errors import TableError
from spark_kafkalite.jobs.tables.table_state import LOG, LogReplay, TableState, actions_in, files_of
from spark_kafkalite.manifests.files import Files

T = TypeVar("T")

_COMMIT: Final = re.compile(r"(\d{20})\.json", re.ASCII)
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet", re.ASCII)
_UNKNOWN_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.[0-9A-Fa-f-]{36}\.(?:parquet|json)", re.ASCII)
# What `Files.write_new` leaves of a commit when its process is killed.
_LEFTOVER: Final = re.compile(r"\.\d{20}\.json\.[0-9a-f]{32}\.tmp", re.ASCII)
_LEFTOVER_MS: Final = 3_600_000
_STATE_COLUMNS: Final = ("protocol", "metaData", "txn")
_FILE_COLUMNS: Final = ("add",)
_ROWS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a log: its commits, ascending, and the newest complete checkpoint, with the names of its parts."""

    commits: tuple[int, ...]
    checkpoint: int | None = None
    parts: tuple[str, ...] = ()
    unknown_checkpoint: str | None = None

    @classmethod
    def of(cls, names: Iterable[str]) -> Listing:
        """Return the listing of a directory's names."""
        commits: list[int] = []
        parts: dict[tuple[int, int], dict[int, str]] = {}
        unknown: dict[int, str] = {}
        for name in names:
            if found := _COMMIT.fullmatch(name):
                commits.append(int(found[1]))
            elif found := _CHECKPOINT.fullmatch(name):
                parts.setdefault((int(found[1]), int(found[3] or 1)), {})[int(found[2] or 1)] = name
            elif found := _UNKNOWN_CHECKPOINT.fullmatch(name):
                unknown[int(found[1])] = name
        complete = [each for each, of_each in parts.items() if set(of_each) == set(range(1, each[1] + 1))]
        newest = max(complete, default=None)
        if newest is None:
            return cls(tuple(sorted(commits)), unknown_checkpoint=unknown[max(unknown)] if unknown else None)
        names_of = parts[newest]
        return cls(tuple(sorted(commits)), newest[0], tuple(names_of[part] for part in sorted(names_of)))

    @property
    def to_read(self) -> tuple[int, ...]:
        """The commits after the checkpoint."""
        return tuple(each for each in self.commits if self.checkpoint is None or each > self.checkpoint)

    @property
    def version(self) -> int | None:
        """The newest version, None if there is no table."""
        if self.to_read:
            return self.to_read[-1]
        return self.checkpoint


class DeltaLog:
    """The log of one topic's table."""

    def __init__(self, files: Files, directory: str) -> None:
        """``directory`` is the table's, relative to the destination."""
        self._files = files
        self.directory = directory
        self.path = f"{directory}/{LOG}"

    @property
    def where(self) -> str:
        """The log as messages name it."""
        return f"{self._files.root}/{self.path}"

    def commit_path(self, version: int) -> str:
        """Return the path of a commit, relative to the destination."""
        return f"{self.path}/{version:020d}.json"

    def read(self) -> TableState | None:
        """Return the table's state, None if there is none.

        Raises TableError for a log that is damaged, or a table that asks for what this program does not know.
        """
        return self._consistent(self._state)

    def read_files(self) -> tuple[dict[str, Mapping[str, Any]], list[tuple[int, Action]]]:
        """Return the table's add actions by path, and the commitInfo of each commit that still has a file."""
        return self._consistent(self._files_and_history)

    def write(self, version: int, text: str) -> None:
        """Write a commit, durable when this returns. Raises FileExists if another writer has made this version."""
        self._files.write_new(self.commit_path(version), text)

    def delete_leftovers(self) -> None:
        """Delete what killed runs have left half-written here for an hour or longer."""
        names = [name for name in self._files.names(self.path) if _LEFTOVER.fullmatch(name)]
        if not names:
            return
        now_ms = self._files.modified_ms(self.path)
        for name in names:
            written_ms = self._files.modified_ms(f"{self.path}/{name}")
            if now_ms is not None and written_ms is not None and now_ms - written_ms > _LEFTOVER_MS:
                self._files.delete(f"{self.path}/{name}")

    def _consistent(self, read: Callable[[Listing], T]) -> T:
        names = self._files.names(self.path)
        while True:
            try:
                return read(self._listing(names))
            except FileNotFoundError:
                # Deleted since it was listed, as a checkpoint replaces it.
                before, names = names, self._files.names(self.path)
                if names == before:
                    raise

    def _listing(self, names: Sequence[str]) -> Listing:
        found = Listing.of(names)
        reads = found.to_read
        first = 0 if found.checkpoint is None else found.checkpoint + 1
        lacking = sorted(set(range(first, reads[-1] if reads else 0)) - set(reads))
        if lacking and found.unknown_checkpoint is not None:
            raise TableError(
                f"{self.where} has the checkpoint {found.unknown_checkpoint}, of a format that this program does not "
                "know: make the table again with --table-resync, or load into another destination"
            )
        if lacking:
            raise TableError(
                f"{self.where}/{lacking[0]:020d}.json is not there, and no complete checkpoint replaces it: restore "
                "it from a copy, or make the table again with --table-resync"
            )
        return found

    def _state(self, listing: Listing) -> TableState | None:
        if listing.version is None:
            return None
        replay = LogReplay(listing.checkpoint)
        for action in self._actions(listing, _STATE_COLUMNS, with_files=False):
            replay.take(action)
        return replay.state(listing.version, self.where)

    def _files_and_history(self, listing: Listing) -> tuple[dict[str, Mapping[str, Any]], list[tuple[int, Action]]]:
        found = files_of(self._actions(listing, _FILE_COLUMNS, with_files=True))
        history = []
        for version in listing.commits:
            for action in self._of_commit(version, with_files=False):
                if action.get("commitInfo") is not None:
                    history.append((version, action["commitInfo"]))
        return found, history

    def _actions(self, listing: Listing, columns: Sequence[str], *, with_files: bool) -> Iterator[Action]:
        for name in listing.parts:
            yield from self._of_checkpoint(f"{self.path}/{name}", columns)
        for version in listing.to_read:
            yield from self._of_commit(version, with_files=with_files)

    def _of_commit(self, version: int, *, with_files: bool) -> Iterator[Action]:
        path = self.commit_path(version)
        try:
            text = self._files.read(path)
        except UnicodeDecodeError:
            raise TableError(f"{self._files.root}/{path} is damaged: it is not UTF-8") from None
        return actions_in(text, f"{self._files.root}/{path}", with_files=with_files)

    def _of_checkpoint(self, path: str, columns: Sequence[str]) -> Iterator[Action]:
        with self._files.open(path) as opened:
            try:
                parquet = pq.ParquetFile(opened)
                present = [name for name in columns if name in parquet.schema_arrow.names]
                for batch in parquet.iter_batches(_ROWS, columns=present):
                    for name in present:
                        column = batch.column(name)
                        yield from ({name: _plain(each)} for each in column.filter(pc.is_valid(column)).to_pylist())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise TableError(
                    f"{self._files.root}/{path} is damaged: {str(error).splitlines()[0]}: delete it if the commits "
                    "before it still exist, or make the table again with --table-resync"
                ) from None


def _plain(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action of a checkpoint as commits have it: Arrow gives maps as lists of pairs."""
    return {name: dict(value) if _is_map(value) else value for name, value in action.items()}


def _is_map(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, tuple) for each in value) and bool(value)
