"""The stream job: a topic continuously copied to another topic, or to Parquet files, through Structured Streaming.

At-least-once into a topic (a batch that is run again is sent again); exactly-once into files (Spark's file sink keeps
its own log). The checkpoint is the truth about what was read: run the job again with it to go on.

The offsets in a checkpoint say nothing about a topic that was deleted and created again in between, and have no room
for a topic's id. So the job keeps the ids beside them, ``CHECKPOINT/_kafkalite/topic_ids/NAME`` with one JSON object
each, and refuses another id.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from typing import TYPE_CHECKING, Final

import click

from spark_kafkalite.errors import UnknownTopicOrPartition
from spark_kafkalite.spark.jobs.client_options import (
    client_options,
    client_settings,
    open_admin,
    sink_options,
    source_options,
)
from spark_kafkalite.spark.jobs.command import JobCommand
from spark_kafkalite.spark.jobs.files import Files
from spark_kafkalite.spark.jobs.layout import directory_name
from spark_kafkalite.spark.jobs.manifest import HOME
from spark_kafkalite.spark.jobs.planning import DataLossError
from spark_kafkalite.spark.jobs.session import (
    failures_in_one_line,
    reachable_files,
    start_session,
    topic_id_text,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_kafkalite.client.admin.admin import Admin

_LOOK_FOR_INTERRUPTION_S: Final = 1


@click.command(name="stream", cls=JobCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--topic", required=True, help="Topic to read, or several with commas.")
@click.option("--to-topic", help="Topic to write to.")
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
    destination: str | None,
    checkpoint: str,
    trigger: str,
    starting_offsets: str,
    max_offsets_per_trigger: int | None,
    command_config: str | None,
    option_pairs: tuple[str, ...],
) -> None:
    """Copy TOPIC to another topic or to Parquet files, batch by batch, and go on where the checkpoint stands.

    With a trigger such as '10 seconds' it never ends; Ctrl-C ends it, and loses nothing.
    """
    if (to_topic is None) == (destination is None):
        raise click.UsageError("give exactly one of --to-topic and --destination")
    options = client_settings(command_config, option_pairs, writes=to_topic is not None)
    source = source_options(bootstrap_server, options)
    source |= {"subscribe": topic, "startingOffsets": starting_offsets, "includeHeaders": "true"}
    if max_offsets_per_trigger is not None:
        source["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    with failures_in_one_line():
        spark = start_session("kafkalite stream")
        frame = spark.readStream.format("kafkalite").options(**source).load()
        with open_admin(bootstrap_server, options) as admin:
            _check_topic_ids(admin, reachable_files(spark, "--checkpoint", checkpoint), topic)
        if to_topic is not None:
            frame = frame.select("key", "value", "headers", "timestamp")
            sink = {**sink_options(bootstrap_server, options), "topic": to_topic}
            writer = frame.writeStream.format("kafkalite").options(**sink)
        else:
            writer = frame.writeStream.format("parquet").option("path", destination)
        writer = writer.option("checkpointLocation", checkpoint)
        if trigger == "available-now":
            writer = writer.trigger(availableNow=True)
        elif trigger == "once":
            writer = writer.trigger(once=True)
        else:
            writer = writer.trigger(processingTime=trigger)
        _await_end(writer.start())


def _check_topic_ids(admin: Admin, checkpoint: Files, topics: str) -> None:
    """Remember the topics' ids beside the checkpoint. Raises DataLossError for one that is not the remembered one."""
    for topic in (name.strip() for name in topics.split(",")):
        try:
            found = topic_id_text(admin.describe_topics([topic])[topic].topic_id)
        except UnknownTopicOrPartition:
            continue  # The source says so in its own words.
        if found is None:
            continue
        path = f"{HOME}/topic_ids/{directory_name(topic, checkpoint.name_max_bytes)}"
        if not checkpoint.exists(path):
            if checkpoint.names("offsets"):
                click.echo(
                    f"topic {topic}: the checkpoint does not say which topic of this name was read; the one that is "
                    f"there now, with id {found}, is taken for it",
                    err=True,
                )
            checkpoint.write_new(path, json.dumps({"topic": topic, "id": found}) + "\n")
            continue
        remembered = json.loads(checkpoint.read(path))["id"]
        if remembered != found:
            raise DataLossError(
                f"topic {topic}: the checkpoint {checkpoint.root} is of the topic with id {remembered}, but its id now "
                f"is {found}: it was deleted and created again, or this is another cluster; give another --checkpoint "
                "to read the topic from --starting-offsets"
            )


def _await_end(query: StreamingQuery) -> None:
    """Wait until the query ends; Ctrl-C stops it.

    PySpark's own handler would talk to the JVM in the middle of another call, and print tracebacks.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        while not interrupted.is_set() and not query.awaitTermination(_LOOK_FOR_INTERRUPTION_S):
            pass
        if interrupted.is_set():
            # Under spark-submit the JVM has had the signal too and may be gone.
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                query.stop()
    finally:
        signal.signal(signal.SIGINT, before)
