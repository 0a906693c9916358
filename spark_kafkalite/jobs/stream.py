"""The stream job: a topic continuously copied to another topic, or to Parquet files, through Structured Streaming.

At least once into a topic (a batch that runs again writes its records again); exactly once into files (Spark's file
sink keeps its own log). The checkpoint records what was read: run the job again with it to go on.

The job keeps the ids of the topics in the checkpoint's directory (``streaming``), and refuses a topic that was created
again.
"""

from __future__ import annotations

import click

from spark_kafkalite.jobs.copying.streaming import (
    QuarantineTopic,
    await_end,
    check_topic_ids,
    has_begun,
    origin_column,
)
from spark_kafkalite.jobs.program.client_options import (
    client_options,
    client_settings,
    open_admin,
    sink_options,
    source_options,
)
from spark_kafkalite.jobs.program.command import JobCommand, is_given, names_in
from spark_kafkalite.jobs.program.session import reachable_files, start_session
from spark_kafkalite.spark.pyspark_versions import AVAILABLE_NOW_OPTIONS, start_available_now
from spark_kafkalite.spark.reading.read_schema import copied_schema


@click.command(name="stream", cls=JobCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--topic", required=True, help="Topic to read, or several with commas.")
@click.option("--to-topic", help="Topic to write to.")
@click.option(
    "--quarantine-topic",
    help="With --to-topic: topic for records that it refuses for themselves; without it the job stops.",
)
@click.option("--destination", help="Directory to write Parquet files to.")
@click.option("--checkpoint", required=True, help="Directory that remembers what has been read.")
@click.option("--trigger", default="available-now", show_default=True, help="available-now, once, or '10 seconds'.")
@click.option("--starting-offsets", default="earliest", show_default=True, help="For a new checkpoint.")
@click.option("--max-offsets-per-trigger", type=click.IntRange(min=1), help="Bound of one micro-batch.")
@client_options
def main(
    bootstrap_server: str,
    topic: str,
    to_topic: str | None,
    quarantine_topic: str | None,
    destination: str | None,
    checkpoint: str,
    trigger: str,
    starting_offsets: str,
    max_offsets_per_trigger: int | None,
    command_config: str | None,
    option_pairs: tuple[str, ...],
) -> None:
    """Copy TOPIC to another topic or to Parquet files, batch by batch, and go on at the position of the checkpoint.

    With a trigger such as '10 seconds' it runs until Ctrl-C, which loses no records. A record that TO_TOPIC refuses for
    itself (too large, its timestamp, no key) stops the job with exit code 5. With --quarantine-topic it goes there,
    with headers that name its origin and the error.
    """
    if (to_topic is None) == (destination is None):
        raise click.UsageError("give exactly one of --to-topic and --destination")
    topics = names_in(topic)
    if quarantine_topic is not None:
        if to_topic is None:
            raise click.UsageError("--quarantine-topic needs --to-topic: files refuse no record")
        if quarantine_topic in (to_topic, *topics):
            raise click.BadParameter(
                f"{quarantine_topic!r} is read or written by this job; give another topic",
                param_hint="--quarantine-topic",
            )
    options = client_settings(command_config, option_pairs, writes=to_topic is not None)
    source = source_options(bootstrap_server, options)
    source |= {"subscribe": topic, "includeHeaders": "true"}
    if max_offsets_per_trigger is not None:
        source["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    if trigger == "available-now":
        source |= AVAILABLE_NOW_OPTIONS
    spark = start_session("kafkalite stream")
    files = reachable_files(spark, "--checkpoint", checkpoint)
    if not has_begun(files) or is_given("starting_offsets"):
        source["startingOffsets"] = starting_offsets
    reader = spark.readStream.format("kafkalite").options(**source)
    if to_topic is not None:
        reader = reader.schema(copied_schema("topic", "partition", "offset", "key", "value", "headers", "timestamp"))
    frame = reader.load()
    with open_admin(bootstrap_server, options) as admin:
        check_topic_ids(admin, files, topics)
        quarantine = None if quarantine_topic is None else QuarantineTopic(admin, quarantine_topic)
        if quarantine is not None:
            quarantine.begin()
        if to_topic is not None:
            frame = frame.select("key", "value", "headers", "timestamp", origin_column())
            sink = {**sink_options(bootstrap_server, options, quarantine_topic), "topic": to_topic}
            writer = frame.writeStream.format("kafkalite").options(**sink)
        else:
            writer = frame.writeStream.format("parquet").option("path", destination)
        writer = writer.option("checkpointLocation", checkpoint)
        if trigger == "available-now":
            query = start_available_now(writer)
        elif trigger == "once":
            query = writer.trigger(once=True).start()
        else:
            query = writer.trigger(processingTime=trigger).start()
        await_end(query)
        if quarantine is not None and (count := quarantine.came()):
            click.echo(f"records that topic {to_topic} refused, now in topic {quarantine.name}: {count}", err=True)
