"""The load job: writes the records that topics received since the last run to files in a directory, each once.

Run by ``spark-submit "$(kafkalite jobs path hadoop_load)" ...`` or ``kafkalite jobs run hadoop_load ...``. This is its
command line and its output; the run itself is ``load/load_run.py``. A run without new records publishes no files and
succeeds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, get_args

import click

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.jobs.destination import lease, publish
from spark_kafkalite.jobs.formats.file_layout import CODECS, RECORD_TIME, FileLayout, ValueForm
from spark_kafkalite.jobs.load.load_options import (
    LoadOptions,
    RunBounds,
    TableKind,
    TopicOptions,
    named_pattern,
    schema_text,
    time_zone,
    topic_options_of,
)
from spark_kafkalite.jobs.load.load_report import (
    check_metrics_file,
    metrics_text,
    planned_text,
    report,
    write_metrics,
)
from spark_kafkalite.jobs.load.load_run import plan_round, run_load, summary_of
from spark_kafkalite.jobs.load.sensor import waiting_work
from spark_kafkalite.jobs.program.client_options import client_options, client_settings
from spark_kafkalite.jobs.program.command import JobCommand, keep_manifests_option, lease_options, names_in
from spark_kafkalite.jobs.program.destination_files import files_of, files_without_session
from spark_kafkalite.jobs.program.outcome import ExitCode, error_line
from spark_kafkalite.jobs.program.quantities import Duration, Share, Size
from spark_kafkalite.jobs.program.session import say, start_session
from spark_kafkalite.jobs.tables.table_mark import table_topics
from spark_kafkalite.manifests.files import Files
from spark_kafkalite.settings import read_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_kafkalite.spark.schema_registry import Registry


@click.command(name="hadoop_load", cls=JobCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--topic", "topics", default="", help="Topic to load, or several with commas.")
@click.option("--topic-pattern", help="Also load the topics whose whole name this regular expression matches.")
@click.option(
    "--topic-config",
    metavar="FILE",
    help="TOML file with options of single topics: sections [topics.NAME], or a quoted pattern, with lines such as "
    'partition-by = "hour".',
)
@click.option("--destination", required=True, help="Directory to load into: a path, or a URI such as hdfs://host/dir.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(list(CODECS)),
    default="parquet",
    show_default=True,
    help="Format of the files; text is the values alone, a line each.",
)
@click.option(
    "--codec",
    help="Compression of the files: none, or "
    + "; ".join(f"{name}: {', '.join(codecs[1:])}" for name, codecs in CODECS.items())
    + ". [default: Spark's own]",
)
@click.option(
    "--value",
    type=click.Choice(list(get_args(ValueForm))),
    default="bytes",
    show_default=True,
    help="What becomes of a value: its bytes; columns of the JSON in it; or schema_id and payload of a schema "
    "registry's frame, the payload as JSON with --value-schema, or as Avro with --schema-registry, too.",
)
@click.option(
    "--value-schema",
    metavar="DDL|FILE",
    help="Schema of the JSON, such as 'id BIGINT, name STRING', or a file with that or with a Spark schema's JSON; "
    "with --schema-registry the Avro schema whose fields become columns.",
)
@click.option(
    "--schema-registry",
    metavar="URL",
    help="Schema registry whose schemas decode values of Avro (--value registry). Needs the extra registry.",
)
@click.option(
    "--schema-registry-config",
    metavar="FILE",
    help="Properties file with settings of Confluent's client of the registry, such as basic.auth.user.info.",
)
@click.option(
    "--max-quarantined",
    type=Share(),
    default="0",
    show_default=True,
    help="How many records, N or P% of all, may be put under _kafkalite/quarantine because they cannot be decoded; "
    "more fail the run.",
)
@click.option(
    "--partition-by",
    type=click.Choice(["day", "hour", "none"]),
    default="day",
    show_default=True,
    help="Directories by time.",
)
@click.option(
    "--event-time",
    default=RECORD_TIME,
    show_default=True,
    help="Time of the directories: record (its timestamp), header:NAME, or json:FIELD of the value (json:a.b for a "
    "field of a), in ms since the epoch or ISO 8601. For records without it the timestamp is used; they are counted.",
)
@click.option("--time-zone", default="UTC", show_default=True, help="Zone of days and hours, such as Europe/Berlin.")
@click.option(
    "--change-layout",
    is_flag=True,
    help="Go on in a topic whose files have another --format, --partition-by or --time-zone. Existing files stay as "
    "they are.",
)
@click.option(
    "--file-size",
    type=Size(),
    default="256m",
    show_default=True,
    help="Bytes of the log that one file is made of, about: larger ranges are cut, smaller ones share a file.",
)
@click.option(
    "--driver-bytes",
    type=Size(or_zero=True),
    default="16m",
    show_default=True,
    help="A plan of up to so many bytes of the log is read and written by the driver itself, as Parquet of --value "
    "bytes: Spark's tasks would take seconds to start. 0 leaves all to them.",
)
@click.option("--max-bytes", type=Size(), help="Take about so many bytes of the log at most.")
@click.option("--max-records", type=click.IntRange(min=1), help="Take about so many offsets at most.")
@click.option(
    "--max-minutes",
    type=click.FloatRange(min=0),
    help="Publish in rounds, and begin no further one after so many minutes.",
)
@click.option(
    "--on-out-of-range",
    type=click.Choice(["fail", "earliest", "latest", "nearest", "skip"]),
    default="fail",
    show_default=True,
    help="When records were deleted before they were loaded: fail; go on from the first record that is left (earliest, "
    "nearest), or from the end (latest), and report how many were lost; or leave the partition as it is (skip).",
)
@click.option(
    "--new-partitions",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where to begin in partitions that were never loaded.",
)
@click.option(
    "--on-recreated-topic",
    type=click.Choice(["fail", "earliest"]),
    default="fail",
    show_default=True,
    help="When a topic was deleted and created again since the last run: fail, or load what the new one holds.",
)
@click.option(
    "--on-hole",
    type=click.Choice(["fail", "accept"]),
    default="fail",
    show_default=True,
    help="When a topic that is neither compacted nor transactional lacks offsets: fail, or load what there is.",
)
@click.option(
    "--late",
    type=click.Choice(["append", "late-dir", "reopen"]),
    default="append",
    show_default=True,
    help="What to do with records of a directory that has its _SUCCESS: add a file to it; put it under TOPIC/_late; or "
    "add it and take _SUCCESS away meanwhile.",
)
@click.option(
    "--grace",
    type=Duration(),
    default="10m",
    show_default=True,
    help="How long after its end a day or an hour is waited for before it gets its _SUCCESS.",
)
@click.option(
    "--table",
    type=click.Choice(get_args(TableKind)),
    default="none",
    show_default=True,
    help="delta: make each topic a Delta table at DESTINATION/TOPIC. A topic that is a table stays one in later runs. "
    "Parquet only.",
)
@click.option(
    "--table-resync",
    is_flag=True,
    help="Make the tables of the topics again from the manifests, under new ids, and set their old logs aside.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be loaded, and change nothing.")
@click.option(
    "--sensor",
    is_flag=True,
    help="Only print, as a JSON line, what waits by topic: exit code 0 if a run has something to do, 7 if it has not. "
    "Changes nothing and starts no Spark.",
)
@click.option(
    "--metrics-file", metavar="FILE", help="Write figures of the run there for a node exporter, in Prometheus' text."
)
@keep_manifests_option
@click.option("--recover", "recover_only", is_flag=True, help="Only finish or drop what an earlier run left.")
@lease_options
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def main(**given: Any) -> None:
    """Load the records that TOPIC received since the last run into DESTINATION.

    Files appear as DESTINATION/TOPIC/day=YYYY-MM-DD/TOPIC-PARTITION-FIRST-LAST.parquet, or TOPIC-load-RUN-L-N.parquet
    with several small partitions. They have the columns of the Spark source. Values are bytes unless --value gives
    their format. If a run is killed at any point, the next one completes or drops it. A directory gets _SUCCESS when
    every partition of the topic has passed its end.

    The first character of a TOPIC that begins with '_' or '.' is written as %XX in names, because Spark skips such
    files. Names too long for the file system are cut and end in a hash. A run's manifest lists offsets that it could
    not load, and topics that were created again.
    """
    if given["sensor"]:
        _sense(given)
        return
    # Arrow, which --sensor does without.
    from spark_kafkalite.jobs.tables.delta_tables import DeltaTables
    from spark_kafkalite.jobs.tables.table_checkpoints import add_tables

    options = _options(given)
    if given["table_resync"] and given["dry_run"]:
        raise click.UsageError("--table-resync makes tables again, which --dry-run does not: leave one of them out")
    if given["metrics_file"] is not None:
        check_metrics_file(given["metrics_file"])
    started = time.monotonic()
    summary: dict[str, Any] = {}
    session = cache(partial(_session, options))
    try:
        files = files_of(session, "--destination", given["destination"])
        tables = DeltaTables(files, partial(_columns, session))
        if given["dry_run"]:
            if any(each.layout.value_schema is not None for each in options.topic_options):
                session()
            newest = publish.newest_manifest(files)
            planned = plan_round(session, files, options, options.bounds, newest)
            layouts = options.tables_of(planned.plan.topics, table_topics(files))
            tables.check_only(layouts, newest)
            tables.check_plain({each.topic_partition.topic for each in planned.plan.ranges} - layouts.keys())
            click.echo(planned_text(planned, given["as_json"]))
            return
        run = publish.new_run()
        with lease.held(files, run, lease_ms=given["lease_ms"], wait_ms=given["wait_ms"], say=say) as held:
            recovery = publish.recover(files, run, held.check)
            summary = summary_of(files, recovery)
            number = 0 if recovery.newest is None else recovery.newest.number
            again = _topics_to_resync(options, files) if given["table_resync"] else ()
            tables.recover(number, without=again)
            tables.resync(again, number, run)
            if not given["recover_only"]:
                run_load(session, files, options, run, recovery.newest, summary, tables)
            add_tables(summary, files, tables)
    except BaseException:
        summary = {}
        raise
    finally:
        seconds = round(time.monotonic() - started, 1)
        if given["metrics_file"] is not None and not given["dry_run"]:
            _write_metrics(given["metrics_file"], metrics_text(given["destination"], summary, seconds))
    summary["seconds"] = seconds
    click.echo(json.dumps(summary) if given["as_json"] else report(summary))


def _columns(session: Callable[[], SparkSession], value: str, value_schema: str | None) -> dict[str, Any]:
    """Return the columns of a load's files as the JSON of a Spark type. Only Spark can read a schema of values."""
    from spark_kafkalite.jobs.formats.decoding import file_schema, value_column_type

    if value_schema is not None:
        session()
    found: dict[str, Any] = file_schema(value_column_type(value, value_schema)).jsonValue()
    return found


def _topics_to_resync(options: LoadOptions, files: Files) -> tuple[str, ...]:
    """Return the named topics, and the tables whose names the pattern matches."""
    pattern = options.pattern
    matching = [each for each in table_topics(files) if pattern is not None and re.fullmatch(pattern, each)]
    return tuple(dict.fromkeys((*options.topics, *matching)))


def _sense(given: dict[str, Any]) -> None:
    """Print what waits, and end with exit code 0 or NOTHING_WAITS."""
    for other in ("dry_run", "recover_only", "table_resync"):
        if given[other]:
            option = next(each.opts[0] for each in main.params if each.name == other)
            raise click.UsageError(f"--sensor only looks, and does nothing that {option} asks for; give one of them")
    options = _options(given)
    with files_without_session("--destination", given["destination"]) as files:
        work = waiting_work(files, options)
    click.echo(work.to_json())
    if not work.exists:
        click.get_current_context().exit(ExitCode.NOTHING_WAITS)


def _session(options: LoadOptions) -> SparkSession:
    """Start the session, and check the schemas that only Spark can read."""
    spark = start_session("kafkalite hadoop_load")
    for each in options.topic_options:
        _check_value_schema(each.layout)
    return spark


def _write_metrics(path: str, text: str) -> None:
    try:
        write_metrics(path, text)
    except OSError as error:
        # The run itself has ended as it has.
        say(f"WARNING: --metrics-file {path}: {error_line(error)}; the figures of this run are not there")


# What may differ by topic: the name on the command line and in files, the name in `TopicOptions`, what reads it.
_BY_TOPIC = {
    "format": "file_format",
    "codec": "codec",
    "partition-by": "partition_by",
    "time-zone": "time_zone",
    "file-size": "file_bytes",
    "value": "value",
    "value-schema": "value_schema",
    "event-time": "event_time",
    "max-quarantined": "max_quarantined",
    "on-out-of-range": "on_out_of_range",
    "on-recreated-topic": "on_recreated_topic",
    "new-partitions": "new_partitions",
    "on-hole": "on_hole",
    "late": "late",
    "grace": "grace_ms",
    "table": "table",
}


def _options(given: dict[str, Any]) -> LoadOptions:
    names = names_in(given["topics"])
    pattern = given["topic_pattern"]
    if not names and pattern is None:
        raise click.BadParameter(
            f"{given['topics']!r} names no topic; give one, or --topic-pattern", param_hint="--topic"
        )
    if pattern is not None:
        named_pattern(pattern, "--topic-pattern")
    parameters = {option.opts[0].removeprefix("--"): option for option in main.params}
    values = {own: given[str(parameters[name].name)] for name, own in _BY_TOPIC.items()}
    values["time_zone"] = time_zone(values["time_zone"])
    values["value_schema"] = schema_text(values["value_schema"])
    values["schema_registry"] = _schema_registry(given["schema_registry"], given["schema_registry_config"])
    usual = TopicOptions().changed(values)
    known = {name: (own, _reader(parameters[name])) for name, own in _BY_TOPIC.items()}
    by_pattern = () if given["topic_config"] is None else topic_options_of(given["topic_config"], usual, known)
    for where, each in (("", usual), *((f"[topics.{pattern}]: ", each) for pattern, each in by_pattern)):
        problem = each.layout.problem()
        if problem is None and each.table == "delta" and each.layout.file_format != "parquet":
            problem = f"--table delta needs --format parquet, not {each.layout.file_format}"
        if problem is not None:
            raise click.UsageError(f"{where}{problem}")
    minutes = given["max_minutes"]
    return LoadOptions(
        given["bootstrap_server"],
        names,
        pattern,
        client_settings(given["command_config"], given["option_pairs"]),
        usual,
        by_pattern,
        RunBounds(given["max_bytes"], given["max_records"], None if minutes is None else int(minutes * 60_000)),
        given["keep_manifests_ms"],
        given["driver_bytes"],
        given["change_layout"],
    )


def _schema_registry(url: str | None, config: str | None) -> Registry | None:
    if url is None:
        if config is not None:
            raise click.UsageError("--schema-registry-config needs --schema-registry")
        return None
    from spark_kafkalite.spark.schema_registry import Registry

    try:
        return Registry.at(url, {} if config is None else read_properties(config))
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--schema-registry") from None


def _check_value_schema(layout: FileLayout) -> None:
    from spark_kafkalite.jobs.formats.decoding import check_value_schema

    try:
        check_value_schema(layout)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--value-schema") from None


def _reader(parameter: click.Parameter) -> Any:
    """Return what makes an option's value of a text, as the command line does."""
    own = {"--time-zone": time_zone, "--value-schema": schema_text}.get(parameter.opts[0])
    if own is not None:
        return own
    return lambda value: parameter.type.convert(value, parameter, None)
