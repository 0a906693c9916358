"""The state of a table, from the actions of its log, and what this program knows of tables. Pure.

:class:`LogReplay` takes the actions of a checkpoint and of the commits after it, oldest first. A table may ask for more
of its writers than this program does: a newer protocol, table features, columns with invariants. Such a table is
refused, because a commit without them would damage it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_kafkalite.jobs.tables.delta_actions import READER_VERSION, WRITER_VERSION, Action
from spark_kafkalite.jobs.tables.table_errors import TableError
from spark_kafkalite.jobs.tables.table_schema import Schema, feature_of_columns

# The directory of a table's log, below the table.
LOG: Final = "_delta_log"
# Writers of version 7 list what version 2 has without a list.
_WRITER_WITH_FEATURES: Final = 7
_READER_WITH_FEATURES: Final = 3
_KNOWN_FEATURES: Final = frozenset(("appendOnly", "invariants"))
_OF_FILES: Final = ('{"add"', '{"remove"')
_REMEDY: Final = "restore it from a copy, or make the table again with --table-resync"


@dataclass(frozen=True, slots=True)
class TableState:
    """A table as its log has it at ``version``.

    ``transactions`` are the last version of each application. ``checkpoint_version`` is None without a checkpoint.
    ``metadata`` is the whole metaData action.
    """

    version: int
    table_id: str
    schema: Schema
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]
    transactions: Mapping[str, int]
    checkpoint_version: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def commits_after_checkpoint(self) -> int:
        """How many commits a reader has to read one by one."""
        return self.version - (-1 if self.checkpoint_version is None else self.checkpoint_version)

    def after(self, app_id: str, number: int, schema: Schema) -> TableState:
        """Return the state after a commit of this program."""
        return replace(
            self, version=self.version + 1, schema=schema, transactions={**self.transactions, app_id: number}
        )


class LogReplay:
    """Collects the actions of a table's log; later actions win."""

    def __init__(self, checkpoint_version: int | None = None) -> None:
        self._checkpoint_version = checkpoint_version
        self._protocol: Mapping[str, Any] | None = None
        self._metadata: Mapping[str, Any] | None = None
        self._transactions: dict[str, int] = {}

    def take(self, action: Action) -> None:
        """Take one action. Actions of files, and those with information only, change nothing."""
        if action.get("protocol") is not None:
            self._protocol = action["protocol"]
        elif action.get("metaData") is not None:
            self._metadata = action["metaData"]
        elif action.get("txn") is not None:
            self._transactions[action["txn"]["appId"]] = int(action["txn"]["version"])

    def state(self, version: int, where: str) -> TableState:
        """Return the state at ``version``. Raises TableError, naming the table, where it cannot be taken."""
        if self._protocol is None or self._metadata is None:
            raise TableError(f"{where} is damaged: its log has no protocol or no metaData; {_REMEDY}")
        problem = _unknown_protocol(self._protocol)
        try:
            schema = json.loads(self._metadata["schemaString"])
            found = TableState(
                version,
                str(self._metadata["id"]),
                schema,
                tuple(self._metadata["partitionColumns"]),
                dict(self._metadata.get("configuration") or {}),
                dict(self._transactions),
                self._checkpoint_version,
                self._metadata,
            )
            problem = problem or feature_of_columns(schema)
        except (KeyError, TypeError, ValueError) as error:
            raise TableError(f"{where} is damaged: its metaData cannot be read ({error!r}); {_REMEDY}") from None
        if problem is not None:
            raise TableError(
                f"{where} asks for {problem}, which this program does not know: drop that from the table, make the "
                "table again with --table-resync, or load into another destination"
            )
        return found


def _unknown_protocol(protocol: Mapping[str, Any]) -> str | None:
    """Return what a protocol asks for that this program does not do, or None."""
    reader, writer = protocol.get("minReaderVersion"), protocol.get("minWriterVersion")
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    unknown = sorted(features - _KNOWN_FEATURES)
    if unknown:
        return f"the table feature {', '.join(map(str, unknown))}"
    if not isinstance(reader, int) or (reader > READER_VERSION and reader != _READER_WITH_FEATURES):
        return f"readers of version {reader}"
    if not isinstance(writer, int) or (writer > WRITER_VERSION and writer != _WRITER_WITH_FEATURES):
        return f"writers of version {writer}"
    return None


def actions_in(text: str, where: str, *, with_files: bool = False) -> Iterator[Action]:
    """Yield the actions of a commit's text, those of files only where asked for. Raises TableError for another text."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or (not with_files and line.startswith(_OF_FILES)):
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise TableError(f"{where} is damaged: line {number} is not a JSON object; {_REMEDY}")
        yield found


def files_of(actions: Iterable[Action]) -> dict[str, Mapping[str, Any]]:
    """Return the add actions that are left after all actions, by path as the log has it."""
    found: dict[str, Mapping[str, Any]] = {}
    for action in actions:
        if action.get("add") is not None:
            found[action["add"]["path"]] = action["add"]
        elif action.get("remove") is not None:
            found.pop(action["remove"]["path"], None)
    return found
