"""The Delta tables of a destination: a projection of its manifests, which a run brings up to date.

The manifest stays the commit of a run, and the truth about offsets. A table is what readers see of a topic. It is made
of the manifests alone, so that any later run completes what a run has left, wherever it died:

1. Before a run loads, :meth:`DeltaTables.recover` compares each table with its mark (``table_mark``), and publishes the
   manifests that a table lacks. A table that contradicts its mark stops the run.
2. Before a run stages, :meth:`DeltaTables.make` makes the tables of topics that were loaded without one, and
   :meth:`DeltaTables.check` compares the schema and the directories of what the run is going to load with the table's.
   So no manifest is written that a table could not take.
3. Before its manifest a run writes the marks of new tables (:meth:`DeltaTables.begin`).
4. After its manifest, and the moves of its files, it commits to each table (:meth:`DeltaTables.publish`) and writes the
   mark again.

A commit contains the number of its manifest as a transaction. Each version of a log is written once. A writer that
finds its version taken reads the log again, and compares again: so other writers may commit in between, and a run that
was paused for long adds nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.jobs.program.faults import fault_point
from spark_kafkalite.jobs.tables import delta_actions
from spark_kafkalite.jobs.tables.delta_log import DeltaLog
from spark_kafkalite.jobs.tables.footers import table_files
from spark_kafkalite.jobs.tables.publication import (
    Batch,
    ColumnsOf,
    batches,
    check_batch,
    check_files,
    check_layout,
    grown_schema,
    partition_columns_of,
    partition_columns_of_files,
    schema_for,
    table_directory,
)
from spark_kafkalite.jobs.tables.table_errors import TableError, resync_command
from spark_kafkalite.jobs.tables.table_mark import TABLES, TableMark, contradiction, mark_path, table_topics
from spark_kafkalite.jobs.tables.table_schema import Schema
from spark_kafkalite.jobs.tables.table_state import LOG, TableState
from spark_kafkalite.manifests.files import FileExists, Files
from spark_kafkalite.manifests.manifest import Manifest, PublishedFile
from spark_kafkalite.manifests.names import directory_name

# How often a commit is tried while other writers take its version.
_TRIES: Final = 100
_PAUSE_S: Final = 0.05
_AT_ONCE: Final = 8
# The mark's `checked` is written when so many manifests without files of the topic have come.
_CHECK_EVERY: Final = 50


@dataclass(slots=True)
class DeltaTable:
    """One topic's table: its log, its mark, and its state when it was last read or written.

    ``opened_at`` is the newest manifest that was in the table when the run began.
    """

    topic: str
    log: DeltaLog
    mark: TableMark
    state: TableState | None = None
    opened_at: int = 0

    @property
    def seen(self) -> int:
        """No manifest up to this number is missing in the table."""
        return max(self.number, self.mark.checked)

    @property
    def number(self) -> int:
        """The newest manifest in the table, 0 if there is none."""
        return 0 if self.state is None else self.state.transactions.get(self.mark.app_id, 0)


class DeltaTables:
    """The tables of one destination, for one run of the loader."""

    def __init__(self, files: Files, columns_of: ColumnsOf | None) -> None:
        """``columns_of`` None: schemas are not compared. For :meth:`check_only`."""
        self._files = files
        self._columns_of = columns_of
        self._tables: dict[str, DeltaTable] = {}
        # A number, the newest manifest's number when this was read, and the manifests above the first number.
        self._manifests: tuple[int, int, list[Manifest]] = (0, 0, [])

    @property
    def tables(self) -> Mapping[str, DeltaTable]:
        """The tables that were read or made, by topic."""
        return self._tables

    # What a run does, in this order -----------------------------------------------------------------------------------

    def recover(self, newest_number: int, without: Collection[str] = ()) -> None:
        """Read every table of the destination, and publish the manifests that it lacks.

        ``newest_number`` is that of the newest manifest, 0 without one. ``without`` are topics whose tables are to be
        made again. Raises TableError.
        """
        topics = [topic for topic in table_topics(self._files) if topic not in without]
        if not topics:
            return
        # On HDFS each takes some round trips.
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            opened = pool.map(lambda topic: self._opened(topic, newest_number), topics)
            self._tables.update(zip(topics, opened, strict=True))
        seen = [table.seen for table in self._tables.values()]
        self._manifests_after(min(seen, default=newest_number), newest_number)
        for table in self._tables.values():
            self._catch_up(table, newest_number)

    def check(self, layouts: Mapping[str, Mapping[str, str]]) -> None:
        """Raise TableError if a table, made or still to be made, cannot take files of these layouts, by topic."""
        for topic, layout in layouts.items():
            table = self._tables.get(topic)
            state = None if table is None else table.state
            log = DeltaLog(self._files, self._directory(topic))
            if table is None:
                self._check_no_log(topic, log)
            columns = partition_columns_of(layout) if state is None else state.partition_columns
            check_layout(topic, layout, None if state is None else columns)
            self._grown(topic, None if state is None else state.schema, layout, columns)

    def check_plain(self, topics: Collection[str]) -> None:
        """Raise TableError if a topic that is no table here would be loaded into the table of another writer.

        That table would not have the files, and its VACUUM would delete them.
        """
        plain = sorted(set(topics) - self._tables.keys())
        if not plain:
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # Also in directories that readers of Delta cannot open, where a plain load is allowed.
            names = (directory_name(topic, self._files.name_max_bytes) for topic in plain)
            logs = (DeltaLog(self._files, name) for name in names)
            # A list, because an error in the pool is raised where its result is taken.
            list(pool.map(self._check_no_log, plain, logs))

    def check_only(self, layouts: Mapping[str, Mapping[str, str]], newest: Manifest | None) -> None:
        """Check what a run would check before it stages, and write nothing. Raises TableError."""
        number = 0 if newest is None else newest.number
        made = table_topics(self._files)
        for topic in made:
            self._tables[topic] = self._opened(topic, number, reads_only=True)
        self.check(layouts)
        for topic in layouts.keys() - set(made):
            table = self._new(topic, TableMark.new(number))
            self._check_history(table, self._manifests_after(0, number), layouts[topic])

    def unfinished_run(self, newest: Manifest | None) -> str | None:
        """Return the first run that a table lacks, None if no table lacks one. After :meth:`check_only`."""
        number = 0 if newest is None else newest.number
        lacking = (batch for table in self._tables.values() for batch in self._lacking(table, number))
        return next((batch.manifests[0].run for batch in lacking), None)

    def make(self, layouts: Mapping[str, Mapping[str, str]], newest_number: int) -> None:
        """Make the tables of topics that have been loaded without one. Raises TableError before it writes one.

        ``layouts`` are those of the topics that are tables, by topic.
        """
        # Also of a topic without records: its name is no table's.
        new = [topic for topic in layouts if self._directory(topic) and topic not in self._tables]
        if new and newest_number:
            manifests = self._manifests_after(0, newest_number)
            loaded = {file.topic for manifest in manifests for file in manifest.files}
            for topic in new:
                if topic in loaded:
                    self._check_no_log(topic, DeltaLog(self._files, self._directory(topic)))
                    table = self._new(topic, TableMark.new(newest_number))
                    self._check_history(table, manifests, layouts[topic])
                    self._tables[topic] = table = self._begun(table, newest_number)
                    self._catch_up(table, newest_number)

    def begin(self, topics: Collection[str], staged: Iterable[PublishedFile]) -> None:
        """Check the files of the next manifest, and write the marks of tables that are still to be made.

        ``topics`` are those that are tables. Raises TableError for a file that its table cannot have.
        """
        by_topic: dict[str, list[PublishedFile]] = {}
        for file in staged:
            if file.topic in topics:
                by_topic.setdefault(file.topic, []).append(file)
        for topic, files in by_topic.items():
            table = self._tables.get(topic)
            state = None if table is None else table.state
            columns = partition_columns_of_files(files) if state is None else state.partition_columns
            check_files(topic, files, columns)
        for topic in by_topic.keys() - self._tables.keys():
            self._tables[topic] = self._begun(self._new(topic, TableMark.new()), 0)
        fault_point("table-begun")

    def publish(self, manifest: Manifest) -> None:
        """Commit a manifest to the tables of its topics. Raises TableError."""
        for topic in sorted({file.topic for file in manifest.files} & self._tables.keys()):
            table = self._tables[topic]
            for batch in batches(topic, [manifest], table.number, table.mark.history):
                self._commit(table, batch)
            checked = max(table.mark.checked, manifest.number)
            self._write_mark(table, replace(table.mark, published=table.number, checked=checked))

    def resync(self, topics: Iterable[str], newest_number: int, run: str) -> None:
        """Make tables again from the manifests; the earlier logs are set aside under ``_kafkalite/tables``.

        Everything is checked before anything is changed. Raises TableError, also for a topic that is no table.
        """
        manifests = self._manifests_after(0, newest_number)
        tables = []
        for topic in topics:
            log = DeltaLog(self._files, self._directory(topic))
            marked = self._files.exists(mark_path(log.directory))
            if not marked and not self._files.exists(log.path):
                raise TableError(
                    f"{self._files.root}: topic {topic} is not a Delta table, so there is nothing to make again; "
                    "--table delta makes one"
                )
            table = DeltaTable(topic, log, TableMark.new(newest_number, self._id_of(log)))
            self._check_history(table, manifests)
            tables.append(table)
        for table in tables:
            self._files.replace(mark_path(table.log.directory), table.mark.to_json())
            fault_point("table-resync")
            self._set_aside(table.log, run)
            fault_point("table-resync")
            self._write_mark(table, replace(table.mark, replaces=None))
            self._tables[table.topic] = table
            self._catch_up(table, newest_number)

    # One table --------------------------------------------------------------------------------------------------------

    def _directory(self, topic: str) -> str:
        return table_directory(self._files.root, topic, self._files.name_max_bytes)

    def _new(self, topic: str, mark: TableMark) -> DeltaTable:
        return DeltaTable(topic, DeltaLog(self._files, self._directory(topic)), mark)

    def _opened(self, topic: str, newest_number: int, *, reads_only: bool = False) -> DeltaTable:
        """Return a table that has a mark. Raises TableError if it contradicts the mark."""
        path = mark_path(self._directory(topic))
        mark = TableMark.from_json(self._files.read(path), f"{self._files.root}/{path}")
        table = self._new(topic, mark)
        if mark.replaces is not None and reads_only:
            # The next run sets the old log aside.
            return table
        if mark.replaces is not None:
            # Of a resync that has died.
            if self._id_of(table.log) == mark.replaces:
                self._set_aside(table.log, publish.new_run())
            self._write_mark(table, replace(mark, replaces=None))
        table.state = table.log.read()
        self._check(table, newest_number)
        table.opened_at = table.number
        if not reads_only:
            table.log.delete_leftovers()
        return table

    def _begun(self, table: DeltaTable, newest_number: int) -> DeltaTable:
        """Write the first mark of a table. If another run has written one meanwhile, return that run's table."""
        try:
            self._files.write_new(mark_path(table.log.directory), table.mark.to_json())
        except FileExists:
            return self._opened(table.topic, max(newest_number, publish.newest_number(self._files)))
        return table

    def _check(self, table: DeltaTable, newest_number: int) -> None:
        problem = contradiction(self._files.root, table.topic, table.mark, table.state, newest_number)
        if problem is not None:
            raise problem

    def _check_no_log(self, topic: str, log: DeltaLog) -> None:
        """Raise TableError if there is a table that this destination does not know."""
        if log.read() is not None:
            raise TableError(
                f"{log.where} is the log of a Delta table that this destination has no mark of: move the table away, "
                f"or make it again from the manifests: {resync_command(self._files.root, topic)}"
            )

    def _id_of(self, log: DeltaLog) -> str | None:
        """Return the id of the table in a log, None if there is none or it cannot be read."""
        try:
            state = log.read()
        except TableError:
            return None
        return None if state is None else state.table_id

    def _set_aside(self, log: DeltaLog, run: str) -> None:
        if self._files.exists(log.path):
            self._files.move_directory(log.path, f"{TABLES}/{log.directory}/{LOG.lstrip('_')}-{run}")

    def _check_history(
        self, table: DeltaTable, manifests: Sequence[Manifest], layout: Mapping[str, str] | None = None
    ) -> None:
        """Raise TableError if the files that were loaded before, and files of ``layout``, cannot be one table."""
        columns: tuple[str, ...] | None = None
        schema: Schema | None = None
        for batch in batches(table.topic, manifests, 0, table.mark.history):
            columns = columns if columns is not None else batch.partition_columns
            check_batch(table.topic, batch, columns)
            if self._columns_of is not None:
                schema = self._schema_with(table.topic, schema, batch, columns)
            table_files(self._files, batch.files)
        if layout is not None:
            check_layout(table.topic, layout, columns)
            self._grown(table.topic, schema, layout, partition_columns_of(layout))

    def _lacking(self, table: DeltaTable, newest_number: int) -> Iterator[Batch]:
        """Yield the commits that the table lacks."""
        seen = table.seen
        if newest_number > seen:
            manifests = self._manifests_after(0 if seen < table.mark.history else seen, newest_number)
            yield from batches(table.topic, manifests, table.number, table.mark.history)

    def _catch_up(self, table: DeltaTable, newest_number: int) -> None:
        """Commit the manifests that the table lacks, and bring its mark up to date."""
        for batch in self._lacking(table, newest_number):
            self._commit(table, batch)
        mark = replace(table.mark, published=table.number, checked=newest_number)
        # Manifests that were restored from an older copy take numbers again that were checked.
        lags = not mark.checked - _CHECK_EVERY < table.mark.checked <= mark.checked
        if mark.published != table.mark.published or lags:
            self._write_mark(table, mark)

    def _commit(self, table: DeltaTable, batch: Batch) -> None:
        """Commit a batch, unless another run has done so. Raises TableError."""
        found = table_files(self._files, batch.files)
        for _ in range(_TRIES):
            if table.number >= batch.number:
                return
            columns = table.state.partition_columns if table.state is not None else batch.partition_columns
            check_batch(table.topic, batch, columns)
            schema = self._schema_with(table.topic, None if table.state is None else table.state.schema, batch, columns)
            version = 0 if table.state is None else table.state.version + 1
            text = delta_actions.commit_text(_actions(table, batch, found, columns, schema))
            fault_point("table-commit")
            self._check_mark(table)
            try:
                table.log.write(version, text)
            except FileExists:
                # Another writer, another run that has come to the same manifest, or a lost answer of the file system.
                time.sleep(_PAUSE_S)
                table.state = table.log.read()
                self._check(table, publish.newest_number(self._files))
                continue
            fault_point("table-committed")
            table.state = (
                table.log.read() if table.state is None else table.state.after(table.mark.app_id, batch.number, schema)
            )
            return
        raise TableError(
            f"{table.log.where}: other writers took {_TRIES} versions while this run tried to commit manifest "
            f"{batch.number}: run again when they have ended; the manifests have everything"
        )

    def _schema_with(self, topic: str, schema: Schema | None, batch: Batch, columns: Sequence[str]) -> Schema:
        """Return a table's schema, None before its first commit, with the columns of a batch."""
        for manifest in batch.manifests:
            schema = self._grown(topic, schema, manifest.layout_of(topic), columns)
        assert schema is not None, "a batch has a manifest"
        return schema

    def _grown(
        self, topic: str, schema: Schema | None, layout: Mapping[str, str], columns: Sequence[str]
    ) -> Schema | None:
        """Return a schema with the columns of files of a layout; without a comparison the schema itself."""
        if self._columns_of is None:
            return schema
        return grown_schema(topic, schema, schema_for(self._columns_of, topic, layout, columns))

    def _manifests_after(self, number: int, newest_number: int) -> list[Manifest]:
        """Return the manifests above ``number``; they are read once for all tables."""
        after, newest, found = self._manifests
        if number < after or newest != newest_number:
            found = publish.manifests_after(self._files, number)
            self._manifests = (number, newest_number, found)
        return [manifest for manifest in found if manifest.number > number]

    def _check_mark(self, table: DeltaTable) -> None:
        """Raise DestinationHeld if another run has made the table again: this one would damage its log."""
        path = mark_path(table.log.directory)
        mark = TableMark.from_json(self._files.read(path), f"{self._files.root}/{path}")
        if mark.table_id != table.mark.table_id:
            raise DestinationHeld(
                f"{self._files.root}: another run took over and made the Delta table of topic {table.topic} again; it "
                "has what this run has published"
            )

    def _write_mark(self, table: DeltaTable, mark: TableMark) -> None:
        self._check_mark(table)
        self._files.replace(mark_path(table.log.directory), mark.to_json())
        table.mark = mark


def _actions(
    table: DeltaTable, batch: Batch, files: Sequence[delta_actions.TableFile], columns: Sequence[str], schema: Schema
) -> list[delta_actions.Action]:
    at_ms = int(time.time() * 1000)
    state, mark = table.state, table.mark
    found = [delta_actions.commit_info(table.topic, batch.manifests, files, columns, at_ms)]
    if state is None:
        found.append(delta_actions.protocol())
        found.append(delta_actions.metadata(mark.table_id, schema, columns, at_ms))
    elif schema != state.schema:
        others = {name: state.metadata[name] for name in ("name", "description") if state.metadata.get(name)}
        others |= {"createdTime": state.metadata.get("createdTime") or at_ms}
        found.append(delta_actions.metadata(state.table_id, schema, columns, at_ms, state.configuration, others))
    found.append(delta_actions.transaction(mark.app_id, batch.number, at_ms))
    return [*found, *map(delta_actions.add, files)]
