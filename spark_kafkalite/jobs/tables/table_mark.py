"""The mark of a table, ``_kafkalite/tables/TOPIC/table.json``: what the destination knows of it, apart from its log.

A topic is a table if it has a mark. The log alone cannot be the memory of what is in a table: its transactions expire,
and a table can be deleted or made again under the same name. So every run compares both (:func:`contradiction`):

- a transaction that is newer than the mark is what a run leaves that dies between its commit and its mark;
- one that is older or missing, or another id of the table, means that the table lacks or may lack what was published.
  Nothing is added then, because files that an OPTIMIZE has merged would count twice.

JSON, UTF-8, replaced in one step. Pure but for :func:`table_topics`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final
from uuid import uuid4

from spark_kafkalite.jobs.tables.table_errors import TableError, resync_command
from spark_kafkalite.jobs.tables.table_state import TableState
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import HOME

TABLES: Final = f"{HOME}/tables"
_FORMAT: Final = 1
_TYPES: Final = {"app_id": str, "table_id": str, "published": int, "checked": int, "history": int}


@dataclass(frozen=True, slots=True)
class TableMark:
    """What is known of a table. Manifests are given by their numbers, all inclusive; 0 is none.

    ``app_id`` is the application of the table's transactions, and ``table_id`` the id in its metadata; both are made
    at random with the mark. ``published`` is the newest manifest that is in the table. No manifest up to ``checked``
    has files of the topic that are not in the table. Those up to ``history`` are older than the mark. ``replaces`` is
    the id of the table whose log is to be set aside.
    """

    app_id: str
    table_id: str
    published: int = 0
    checked: int = 0
    history: int = 0
    replaces: str | None = None

    @classmethod
    def new(cls, history: int = 0, replaces: str | None = None) -> TableMark:
        """Return the mark of a table that is still to be made, of the manifests up to ``history`` and later ones."""
        return cls(str(uuid4()), str(uuid4()), history=history, replaces=replaces)

    @classmethod
    def from_json(cls, text: str, where: str) -> TableMark:
        """Return the mark in a text. Raises TableError, naming the file, for any other text."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or any(type(found.get(name)) is not kind for name, kind in _TYPES.items()):
            raise TableError(f"{where} is damaged: restore it from a copy, or make the table again with --table-resync")
        if found.get("format") != _FORMAT:
            raise TableError(
                f"{where}: format {found.get('format')!r} is not {_FORMAT}: a newer version wrote it; use it"
            )
        replaces = found.get("replaces")
        return cls(**{name: found[name] for name in _TYPES}, replaces=None if replaces is None else str(replaces))

    def to_json(self) -> str:
        """Return the mark's text."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"


def mark_path(directory: str) -> str:
    """Return the path of a table's mark. ``directory`` is the table's."""
    return f"{TABLES}/{directory}/table.json"


def table_topics(files: Files) -> list[str]:
    """Return the topics of a destination that are tables."""
    return [name for name in files.names(TABLES) if files.exists(mark_path(name))]


def contradiction(
    root: str, topic: str, mark: TableMark, state: TableState | None, newest_number: int
) -> TableError | None:
    """Return the error for a table that is not the one of its mark, None if nothing contradicts it.

    ``newest_number`` is that of the destination's newest manifest, 0 without one.
    """
    problem = _problem(mark, state, newest_number)
    if problem is None:
        return None
    return TableError(
        f"{root}: the Delta table of topic {topic} {problem}. Nothing was loaded, because files might count twice. "
        f"Restore the table, or make it again from the manifests: {resync_command(root, topic)}"
    )


def _problem(mark: TableMark, state: TableState | None, newest_number: int) -> str | None:
    if state is None:
        if mark.published == 0:
            return None
        return f"is gone: its log is empty, and manifest {mark.published} was published in it"
    if state.table_id != mark.table_id:
        return f"has id {state.table_id}, and this destination made the one with id {mark.table_id}: it was made again"
    number = state.transactions.get(mark.app_id)
    if number is None:
        return (
            f"has no transaction of this destination any more, and manifest {mark.published} was published in it: "
            "transactions have expired (delta.setTransactionRetentionDuration)"
        )
    if number < mark.published:
        return f"has manifest {number} as its last transaction, but manifest {mark.published} was published in it"
    if number > newest_number:
        return f"has manifest {number} as its last transaction, but the newest manifest is {newest_number}"
    return None
