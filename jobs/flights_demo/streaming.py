"""Step 3: two streaming queries over the flights, while November is sent and the broker is killed under them."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's documentation uses

from flights_demo import topic
from flights_demo.flights import HOUR_MS, Aggregate, Flights
from flights_demo.report import Report
from spark_kafkalite.processes.cluster import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

LATE_MINUTES = 60
# Batches take the same share of every partition, but carriers do not fly at the same rate all year: events of one batch
# may be this much older than the newest of the batch before.
_WATERMARK = "10 days"
_BATCHES = 7
_TIMEOUT_S = 150
_EVENT = "row BIGINT, carrier STRING, flight BIGINT, dep_delay BIGINT"
_DOWN_S = 2.0


def run(
    report: Report, spark: SparkSession, broker: BrokerProcess, output: Path, before: Flights, november: Flights
) -> None:
    """Run both queries over ``before`` (in the topic already) and ``november`` (sent now), then check everything."""
    everything = Flights(_concatenated(before, november))
    topic.create_topic(broker.bootstrap, "late-flights")
    events = _read_events(spark, broker.bootstrap, max_offsets=-(-len(everything) // _BATCHES))
    queries = {
        "delays": _delay_windows(events, output),
        "late-flights": _late_flights(events, broker.bootstrap, output),
    }
    try:
        for query in queries.values():
            _wait_for_a_batch(query)
        report.say("both queries have read their first batch")
        _send_through_a_crash(report, broker, november)
        for name, query in queries.items():
            _wait_until_done(report, name, query, len(everything))
    finally:
        for query in queries.values():
            query.stop()
    in_order = topic.rows_by_partition(broker.bootstrap, "flights")
    report.check_same_rows(
        "source topic after the crash", everything.rows(), [row for rows in in_order for row in rows]
    )
    report.check(
        "each partition in send order", in_order == everything.rows_by_partition(), f"{len(in_order)} partitions"
    )
    for name, query in queries.items():
        batches = sum(progress["numInputRows"] > 0 for progress in query.recentProgress)
        report.check(f"query {name}: at least five micro-batches", batches >= 5, f"{batches}")
    _check_windows(report, spark, queries["delays"], output, everything.delays())
    _check_late(report, broker.bootstrap, everything.late(LATE_MINUTES))


def _concatenated(first: Flights, second: Flights) -> Any:
    import pyarrow as pa

    return pa.concat_tables([first.table, second.table])


def _read_events(spark: SparkSession, bootstrap: str, max_offsets: int) -> DataFrame:
    stream = (
        spark.readStream.format("kafkalite")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max_offsets)
        .load()
    )
    event = F.from_json(F.col("value").cast("string"), _EVENT).alias("event")
    return stream.select("key", "timestamp", event).select("key", "timestamp", "event.*")


def _delay_windows(events: DataFrame, output: Path) -> StreamingQuery:
    delays = (
        events.withWatermark("timestamp", _WATERMARK)
        .groupBy(F.window("timestamp", "1 hour"), "carrier")
        .agg(
            F.count("row").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.sum("dep_delay").alias("delay_minutes"),
        )
        .select("carrier", F.col("window.start").alias("hour"), "flights", "departed", "delay_minutes")
    )
    return (
        delays.writeStream.queryName("delays")
        .format("parquet")
        .option("path", str(output / "delays"))
        .option("checkpointLocation", str(output / "checkpoints" / "delays"))
        .trigger(processingTime="1 second")
        .start()
    )


def _late_flights(events: DataFrame, bootstrap: str, output: Path) -> StreamingQuery:
    late = events.where(F.col("dep_delay") >= LATE_MINUTES).select(
        "key", "timestamp", F.to_json(F.struct("row", "carrier", "flight", "dep_delay")).alias("value")
    )
    return (
        late.writeStream.queryName("late-flights")
        .format("kafkalite")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "late-flights")
        .option("checkpointLocation", str(output / "checkpoints" / "late-flights"))
        .trigger(processingTime="1 second")
        .start()
    )


def _wait_for_a_batch(query: StreamingQuery) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while query.isActive and time.monotonic() < deadline:
        if any(progress["numInputRows"] for progress in query.recentProgress):
            return
        time.sleep(0.1)


def _send_through_a_crash(report: Report, broker: BrokerProcess, november: Flights) -> None:
    """Send November and kill the broker with -9 when half of it is sent; it comes back on the same port."""
    half_sent, failures = threading.Event(), []

    def progress(sent: int) -> None:
        if sent * 2 >= len(november):
            half_sent.set()

    def send() -> None:
        try:
            topic.publish(broker.bootstrap, "flights", november, progress, pause_s=0.5)
        except Exception as error:  # handed to the main thread below
            failures.append(error)
            half_sent.set()

    sender = threading.Thread(target=send, name="november")
    sender.start()
    half_sent.wait(_TIMEOUT_S)
    report.say("kill -9 of the broker, with November half sent and both queries running")
    broker.kill()
    time.sleep(_DOWN_S)
    broker.restart()
    report.say(
        f"the broker is back on {broker.bootstrap} after {_DOWN_S:.0f} s; producer and queries go on by themselves"
    )
    sender.join(_TIMEOUT_S)
    detail = str(failures[0]) if failures else f"{len(november)} events acknowledged"
    report.check("the producer finished November", not failures and not sender.is_alive(), detail)


def _wait_until_done(report: Report, name: str, query: StreamingQuery, total: int) -> None:
    """Wait until a query has read ``total`` events and then found nothing new in a later trigger."""
    deadline = time.monotonic() + _TIMEOUT_S
    shown = -1
    while query.isActive and time.monotonic() < deadline:
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
        if read != shown:
            report.say(f"query {name}: {read} of {total} events read")
            shown = read
        last = query.lastProgress
        if read >= total and last is not None and "addBatch" not in last["durationMs"]:
            break
        time.sleep(0.5)
    error = query.exception()
    problem = str(error) if error else ("not all was read in time" if shown < total else "")
    report.check(f"query {name} went on by itself", not problem, problem or f"{shown} events read")


def _check_windows(
    report: Report, spark: SparkSession, query: StreamingQuery, output: Path, expected: Aggregate
) -> None:
    executed = [progress for progress in query.recentProgress if "addBatch" in progress["durationMs"]]
    dropped = sum(
        operator["numRowsDroppedByWatermark"] for progress in executed for operator in progress["stateOperators"]
    )
    report.check("no row dropped by the watermark", dropped == 0, f"{dropped}")
    watermark = max(progress["eventTime"].get("watermark", "1970-01-01T00:00:00.000Z") for progress in executed)
    watermark_ms = int(datetime.fromisoformat(watermark).timestamp() * 1000)
    lines = spark.read.parquet(str(output / "delays")).collect()
    found = {
        (line["carrier"], int(line["hour"].replace(tzinfo=UTC).timestamp() * 1000)): (
            line["flights"],
            line["departed"],
            line["delay_minutes"] or 0,
        )
        for line in lines
    }
    closed = {key: value for key, value in expected.items() if key[1] + HOUR_MS <= watermark_ms}
    wrong = sum(found.get(key) != value for key, value in closed.items())
    extra = len(set(found) - set(closed))
    report.check(
        "closed windows equal to the CSV's",
        wrong == 0 and extra == 0 and len(lines) == len(found),
        f"{len(closed)} windows, {wrong} differ, {extra} not closed yet, {len(lines) - len(found)} repeated",
    )
    still_open = sorted(set(expected) - set(closed), key=lambda key: (key[1], key[0]))
    listing = output / "open-windows.txt"
    listing.write_text(
        "".join(
            f"{datetime.fromtimestamp(hour / 1000, UTC):%Y-%m-%dT%H:%MZ} {carrier}\n" for carrier, hour in still_open
        )
    )
    report.say(f"{len(still_open)} windows are still open at the watermark {watermark}; listed in {listing}")


def _check_late(report: Report, bootstrap: str, expected: list[int]) -> None:
    rows = [row for rows in topic.rows_by_partition(bootstrap, "late-flights") for row in rows]
    repeats = len(rows) - len(set(rows))
    report.check(
        "derived topic complete (the sink is at-least-once)",
        set(rows) == set(expected),
        f"{len(set(rows))} of {len(expected)} late flights, {repeats} repeats",
    )
