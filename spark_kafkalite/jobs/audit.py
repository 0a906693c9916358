"""The audit job: counts a load's records again, in its files and in the log, and compares both with its manifests.

Run by ``spark-submit "$(kafkalite jobs path audit)" ...`` or ``kafkalite jobs run audit ...``. It writes nothing into
the destination. ``auditing/recounting.py`` compares, and ``auditing/audit_source.py`` counts the log. This module has
the command line, the calls to the file system and the cluster, and the output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.jobs.auditing import recounting
from spark_kafkalite.jobs.auditing.audit_source import RangeCount, count_ranges
from spark_kafkalite.jobs.auditing.recounting import AuditedRun, Findings, LogCount, RecountScope
from spark_kafkalite.jobs.copying.replay_options import Instant
from spark_kafkalite.jobs.destination import publish
from spark_kafkalite.jobs.destination.lease import DestinationHeld
from spark_kafkalite.jobs.formats.data_files import FORMATS, path_below, path_of_uri, read_files
from spark_kafkalite.jobs.load.planning import PlanError
from spark_kafkalite.jobs.program.client_options import (
    client_options,
    client_settings,
    open_admin,
    open_producer,
    source_options,
)
from spark_kafkalite.jobs.program.command import JobCommand, names_in
from spark_kafkalite.jobs.program.outcome import error_line
from spark_kafkalite.jobs.program.session import (
    TopicMissing,
    compacted_topics,
    reachable_files,
    start_session,
    topic_logs,
)
from spark_kafkalite.jobs.tables.table_audit import compare_tables
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.manifests.manifest import (
    COMPACT,
    STAGING,
    FilePart,
    LoadedRange,
    ManifestError,
    PublishedFile,
)
from spark_kafkalite.manifests.manifest_checkpoint import published_files
from spark_kafkalite.manifests.names import file_format_of, is_data_file, is_hidden
from spark_kafkalite.model import IsolationLevel, LogBounds, TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Counted = list[FilePart] | str | None
_WIDE: Final = 200


@click.command(name="audit", cls=JobCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--destination", required=True, help="Directory that hadoop_load has loaded into.")
@click.option("--topic", "topics", help="Topic, or several with commas. [default: all]")
@click.option("--run", help="Audit one run: its name, or the number of its manifest.")
@click.option("--directory", metavar="day=YYYY-MM-DD[/hour=HH]", help="Audit what made the files of a day or an hour.")
@click.option("--from", "from_ms", type=Instant(), help="Audit directories that end later: ms, or ISO 8601 (UTC).")
@click.option("--to", "to_ms", type=Instant(), help="Audit directories that begin earlier: ms, or ISO 8601 (UTC).")
@click.option(
    "--bootstrap-server", help="HOST:PORT of a broker. [default: none, files are compared with manifests only]"
)
@click.option("--audit-topic", help="Topic to write the counts to, a JSON object for each run and partition.")
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(**given: Any) -> None:
    """Count again what hadoop_load has published in DESTINATION.

    The job compares every file's records, offsets and length with the manifest of its run. With --bootstrap-server it
    also reads the log a second time, and writes nothing. It compares the log with the manifest of each run, by
    partition and by directory of time. It reports offsets that the log no longer holds, and topics that were created
    again. It compares the files of Delta tables with the manifests.

    Each difference is a line, and makes the exit code 1.
    """
    selection = _selection(given)
    if given["audit_topic"] and not given["bootstrap_server"]:
        raise click.UsageError("--audit-topic needs --bootstrap-server: the topic is in that cluster")
    client = client_settings(given["command_config"], given["option_pairs"], writes=given["audit_topic"] is not None)
    if given["audit_topic"]:
        _check_topic(given["bootstrap_server"], client, given["audit_topic"])
    started = time.monotonic()
    spark = start_session("kafkalite audit")
    files = reachable_files(spark, "--destination", given["destination"])
    audit = run_audit(spark, files, selection, given["bootstrap_server"], client)
    if given["audit_topic"]:
        _send(audit, given["bootstrap_server"], client, given["audit_topic"])
    summary = {**audit.summary(files), "seconds": round(time.monotonic() - started, 1)}
    if given["as_json"]:
        click.echo(json.dumps(summary))
    else:
        _print(summary)
    click.get_current_context().exit(1 if summary["mismatches"] else 0)


def _selection(given: Mapping[str, Any]) -> RecountScope:
    if given["directory"] is not None and recounting.day_of(given["directory"]) is None:
        raise click.BadParameter(
            f"{given['directory']!r} is not a directory of time such as day=2026-01-31 or day=2026-01-31/hour=05",
            param_hint="--directory",
        )
    topics = frozenset(names_in(given["topics"]))
    return RecountScope(topics, given["run"], given["directory"], given["from_ms"], given["to_ms"])


@dataclass(frozen=True, slots=True)
class Audit:
    """What was audited, what was counted of it, and what was found."""

    runs: list[AuditedRun]
    in_files: Mapping[str, Counted]
    in_log: Mapping[tuple[int, LoadedRange], LogCount]
    findings: Findings

    def summary(self, files: Files) -> dict[str, Any]:
        """Return the job's result."""
        rows = [self._row(run) for run in self.runs]
        return {
            "destination": files.root,
            "runs": rows,
            "files": sum(row["files"] for row in rows),
            "records": sum(row["records"] for row in rows if row["kind"] != COMPACT),
            "mismatches": self.findings.mismatches,
            "not_compared": self.findings.not_compared,
        }

    def _row(self, run: AuditedRun) -> dict[str, Any]:
        logs = [self.in_log.get((run.manifest.number, each)) for each in run.ranges or ()]
        counted = [self.in_files.get(file.final) for file in run.standing]
        return {
            "number": run.manifest.number,
            "run": run.manifest.run,
            "kind": run.manifest.kind,
            "topic": run.topic,
            "files": len(run.standing),
            "replaced_files": len(run.files) - len([file for file in run.files if file in run.standing]),
            "records": sum(file.records for file in run.files),
            "in_files": sum(part.records for parts in counted if isinstance(parts, list) for part in parts),
            "in_log": sum(found.counts["records"] for found in logs if found is not None) if any(logs) else None,
        }


def run_audit(
    spark: SparkSession, files: Files, selection: RecountScope, bootstrap_server: str | None, client: Mapping[str, str]
) -> Audit:
    """Count and compare.

    Raises ManifestError and PlanError where there is nothing to compare, and DestinationHeld where another run changes
    it meanwhile.
    """
    manifests, folded = publish.whole_manifests(files)
    if not manifests:
        raise ManifestError(f"{files.root}: no load run has published anything here; see _kafkalite/manifests")
    unfinished = frozenset(files.names(STAGING)) & {manifest.run for manifest in manifests}
    findings = Findings()
    for run in sorted(unfinished):
        raise DestinationHeld(
            f"{files.root}: run {run} has not moved all its files yet: audit again when it has ended; if it was "
            "killed, kafkalite jobs run hadoop_load --recover completes it"
        )
    runs = recounting.audited_runs(manifests, folded, selection)
    if not runs:
        raise PlanError(f"{files.root}: no run has published anything of {selection}")
    tables = compare_tables(files, manifests, selection.topics)
    findings.mismatches += tables.mismatches
    findings.not_compared += tables.not_compared
    if tables.gone:
        findings.not_compared.append(f"{len(tables.gone)} files that a Delta table no longer names, and are deleted")
        runs = [run.without(tables.gone) for run in runs]
    in_files = _compare_files(spark, files, runs, findings)
    # The directories of a table may have files of OPTIMIZE.
    listed = [run for run in runs if run.topic not in tables.topics]
    findings.mismatches += _not_named(files, listed, {file.final for _, file in published_files(manifests)})
    findings.mismatches += recounting.compare_merged(manifests, runs)
    findings.not_compared += [
        f"{run.name}, topic {run.topic}: with the log, because only a checkpoint has its manifest, without offsets"
        for run in runs
        if run.ranges is None and run.manifest.kind != COMPACT
    ]
    in_log: dict[tuple[int, LoadedRange], LogCount] = {}
    if bootstrap_server is None:
        findings.not_compared.append("all with the log, because no --bootstrap-server is given")
    else:
        in_log = _compare_log(spark, runs, bootstrap_server, client, findings)
    if findings.mismatches and publish.whole_manifests(files)[0][-1].number != manifests[-1].number:
        raise DestinationHeld(f"{files.root}: another run published while this audit read its files: audit again")
    return Audit(runs, in_files, in_log, findings)


# The files ----------------------------------------------------------------------------------------------------------


def _compare_files(
    spark: SparkSession, files: Files, runs: Sequence[AuditedRun], findings: Findings
) -> dict[str, Counted]:
    standing = [(run.manifest, file) for run in runs for file in run.standing]
    sizes = {file.final: files.size_bytes(file.final) for _, file in standing}
    counted: dict[str, Counted] = {}
    uncounted: dict[str, int] = {}
    by_format: dict[str, list[PublishedFile]] = {}
    for _, file in standing:
        if sizes[file.final] is not None:
            by_format.setdefault(file_format_of(file.final), []).append(file)
    for file_format, of_format in sorted(by_format.items()):
        if file_format in FORMATS:
            counted |= _counted(spark, files, file_format, of_format)
        else:
            uncounted[file_format] = len(of_format)
    for manifest, file in standing:
        findings.mismatches += recounting.compare_file(manifest, file, sizes[file.final], counted.get(file.final))
    findings.not_compared += [
        f"the records in {count} files of format {name}, whose length was" for name, count in uncounted.items()
    ]
    return counted


def _not_named(files: Files, runs: Iterable[AuditedRun], known: Collection[str]) -> list[str]:
    """Return lines for data files in audited directories that no manifest names: listings show their records."""
    directories = {file.directory for run in runs for file in run.standing}
    found = (f"{directory}/{name}" for directory in sorted(directories) for name in files.names(directory))
    return [
        f"{path} exists, and no manifest names it"
        for path in found
        if path not in known and is_data_file(path) and not is_hidden(path.rpartition("/")[2])
    ]


def _counted(spark: SparkSession, files: Files, file_format: str, group: Sequence[PublishedFile]) -> dict[str, Counted]:
    """Return what each file holds, by final path; of one that cannot be read, why."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

    try:
        rows = (
            read_files(spark, file_format, (f"{files.root}/{file.final}" for file in group))
            .groupBy(F.col("_metadata.file_path").alias("path"), "partition")
            .agg(F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("offset").alias("records"))
            .collect()
        )
    except (PySparkException, Py4JJavaError) as error:
        if len(group) == 1:
            return {group[0].final: error_line(error)}
        # Which one it is, the error may not tell.
        half = len(group) // 2
        parts = (group[:half], group[half:])
        return {path: found for part in parts for path, found in _counted(spark, files, file_format, part).items()}
    final_of = {path_below(files, file.final): file.final for file in group}
    found: dict[str, list[FilePart]] = {file.final: [] for file in group}
    for row in rows:
        part = FilePart(row["partition"], row["first"], row["last"], row["records"])
        found[final_of[path_of_uri(row["path"])]].append(part)
    return dict(found)


# The log ------------------------------------------------------------------------------------------------------------


def _compare_log(
    spark: SparkSession,
    runs: Sequence[AuditedRun],
    bootstrap_server: str,
    client: Mapping[str, str],
    findings: Findings,
) -> dict[tuple[int, LoadedRange], LogCount]:
    loads = [run for run in runs if run.manifest.kind != COMPACT and run.ranges]
    topics = sorted({run.topic for run in loads})
    newest = max((run.manifest for run in runs), key=lambda manifest: manifest.number)
    bounds: dict[TopicPartition, LogBounds] = {}
    ids: dict[str, str] = {}
    with open_admin(bootstrap_server, client) as admin:
        held = []
        for topic in topics:
            try:
                logs = topic_logs(admin, [topic], IsolationLevel.READ_COMMITTED)
            except PlanError as error:
                findings.not_compared.append(f"topic {topic} with the log: {error}")
                continue
            held.append(topic)
            bounds |= logs.bounds
            ids |= logs.topic_ids
        compacted = compacted_topics(admin, held)
    wanted: list[tuple[AuditedRun, LoadedRange]] = []
    for run in loads:
        if run.topic not in held:
            continue
        problem = recounting.why_another_topic(run, newest, ids.get(run.topic))
        if problem is not None:
            findings.not_compared.append(f"{run.name}, topic {run.topic}: with the log, because {problem}")
            continue
        wanted += ((run, each) for each in recounting.readable(run, bounds, findings))
    counts: dict[OffsetRange, RangeCount] = {}
    tasks = recounting.counting_tasks(each for _, each in wanted)
    if tasks:
        source = {"kafka.isolation.level": "read_committed", **source_options(bootstrap_server, client)}
        for count in count_ranges(spark, tasks, source):
            account = count.account
            tp = TopicPartition(account.topic, account.partition)
            counts[OffsetRange(tp, account.start, account.until)] = count
    found = {}
    for run, each in wanted:
        found[run.manifest.number, each] = log = LogCount.of(each, counts)
        findings.mismatches += recounting.compare_range(run, each, log, run.topic in compacted)
    return found


# What is told -------------------------------------------------------------------------------------------------------


def _check_topic(bootstrap_server: str, client: Mapping[str, str], topic: str) -> None:
    """Raise TopicMissing for a topic that a producer would create by its default settings."""
    with open_admin(bootstrap_server, client) as admin:
        try:
            admin.describe_topics([topic])
        except UnknownTopicOrPartition as error:
            raise TopicMissing(
                f"--audit-topic {topic}: {error}; create it first, `kafkalite topics create --topic {topic}`"
            ) from error


def _send(audit: Audit, bootstrap_server: str, client: Mapping[str, str], topic: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with open_producer(bootstrap_server, client) as producer:
        for run in audit.runs:
            for each in run.ranges or ():
                record = recounting.audit_record(run, each, audit.in_log.get((run.manifest.number, each)), now)
                producer.send(topic, json.dumps(record).encode(), key=each.topic.encode())
        producer.flush()


def _print(summary: Mapping[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for heading in ("RUN", "TOPIC", "KIND"):
        table.add_column(heading, overflow="fold")
    for heading in ("FILES", "MERGED", "MANIFEST", "IN FILES", "IN LOG"):
        table.add_column(heading, justify="right")
    for row in summary["runs"]:
        numbers = (row["files"], row["replaced_files"], row["records"], row["in_files"], row["in_log"])
        table.add_row(
            row["run"], row["topic"], row["kind"], *("-" if each is None else f"{each:,}" for each in numbers)
        )
    # In a pipe there is no width to keep to.
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table, markup=False)
    for line in summary["not_compared"]:
        click.echo(f"not compared: {line}")
    for line in summary["mismatches"]:
        click.echo(f"MISMATCH: {line}")
    verdict = _verdict(summary["mismatches"])
    click.echo(f"{verdict}: {summary['records']} records in {summary['files']} files of {summary['destination']}")


def _verdict(mismatches: Iterable[str]) -> str:
    count = len(list(mismatches))
    return f"{count} mismatch{'es' if count > 1 else ''}" if count else "all that was compared agrees"
