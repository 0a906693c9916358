"""The stream job: a topic continuously copied to another topic, or to Parquet files, through Structured Streaming.

At-least-once into a topic (a batch that is run again is sent again); exactly-once into files (Spark's file sink keeps
its own log). The checkpoint is the truth about what was read: run the job again with it to go on.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Final

import click

from spark_kafkalite.spark.jobs.session import JobFailed, client_option, parse_client_options, start_session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_FOR_INTERRUPTION_S: Final = 1


@click.command(name="stream", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap-server", default="127.0.0.1:9092", show_default=True, help="HOST:PORT of a broker.")
@click.option("--topic", required=True, help="Topic to read, or several with commas.")
@click.option("--to-topic", help="Topic to write to.")
@click.option("--destination", help="Directory to write Parquet files to.")
@click.option("--checkpoint", required=True, help="Directory that remembers what has been read.")
@click.option("--trigger", default="available-now", show_default=True, help="available-now, once, or '10 seconds'.")
@click.option("--starting-offsets", default="earliest", show_default=True, help="For a new checkpoint.")
@click.option("--max-offsets-per-trigger", type=click.IntRange(min=1), help="Bound of one micro-batch.")
@client_option
def main(
    bootstrap_server: str,
    topic: str,
    to_topic: str | None,
    destination: str | None,
    checkpoint: str,
    trigger: str,
    starting_offsets: str,
    max_offsets_per_trigger: int | None,
    client_options: tuple[str, ...],
) -> None:
    """Copy TOPIC to another topic or to Parquet files, batch by batch, and go on where the checkpoint stands.

    With a trigger such as '10 seconds' it never ends; Ctrl-C ends it, and loses nothing.
    """
    from pyspark.errors import PySparkException

    if (to_topic is None) == (destination is None):
        raise click.UsageError("give exactly one of --to-topic and --destination")
    options = parse_client_options(client_options)
    connection = {"kafka.bootstrap.servers": bootstrap_server, **{f"kafka.{k}": v for k, v in options.items()}}
    source = {**connection, "subscribe": topic, "startingOffsets": starting_offsets, "includeHeaders": "true"}
    if max_offsets_per_trigger is not None:
        source["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    try:
        spark = start_session("kafkalite stream")
        frame = spark.readStream.format("kafkalite").options(**source).load()
        if to_topic is not None:
            frame = frame.select("key", "value", "headers", "timestamp")
            writer = frame.writeStream.format("kafkalite").options(**connection).option("topic", to_topic)
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
    except PySparkException as error:
        raise JobFailed(_own_line(str(error))) from error


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


def _own_line(text: str) -> str:
    """Return the source's or sink's own ``[CONDITION] ...`` line; the engine wraps it in a traceback and a SQLSTATE."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line[line.index("[KAFKA") :] for line in lines if "[KAFKA" in line]
    return own[-1] if own else lines[0]
