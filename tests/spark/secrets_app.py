"""A Spark application that uses the source and the sink with secrets in their options, and keeps all that it can see.

Run as a program with one argument, a JSON file: ``options`` of the source and sink, ``topic`` to read and ``to_topic``
to write, ``conf`` of Spark, ``out``: the directory that gets plans, errors, progress and the pages of the UI. Standard
output and error are the driver's log.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin

from pyspark.sql import DataFrame, SparkSession

# Where Spark's UI shows what queries do, beside what links lead to.
PAGES = ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/")


def main(config_path: str) -> None:
    config = json.loads(Path(config_path).read_text())
    out = Path(config["out"])
    logging.basicConfig(level=logging.DEBUG)
    # At DEBUG Py4J logs every call to the JVM with its arguments, and so would do with any option of any source.
    logging.getLogger("py4j").setLevel(logging.INFO)
    builder = SparkSession.builder.appName("secrets")
    for name, value in config["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(config["log_level"])
    try:
        run(spark, config, out)
        keep_pages(spark, out)
    finally:
        spark.stop()


def run(spark: SparkSession, config: dict[str, Any], out: Path) -> None:
    options = config["options"]
    reading = {**options, "subscribe": config["topic"], "startingOffsets": "earliest"}
    writing = {**options, "topic": config["to_topic"]}

    frame = spark.read.format("kafkalite").options(**reading).load()
    keep_plan(out / "batch", frame)
    print("rows", frame.count())
    frame.select("key", "value").write.format("kafkalite").options(**writing).mode("append").save()
    print("reader", spark.read.format("kafkalite").options(**reading), repr(frame))

    clause = ", ".join(f"`{name}` '{value}'" for name, value in reading.items() if "'" not in value)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW records USING kafkalite OPTIONS ({clause})").collect()
    view = spark.sql("SELECT count(*) FROM records")
    keep_plan(out / "view", view)
    view.collect()

    stream = spark.readStream.format("kafkalite").options(**reading).load().select("key", "value")
    keep_plan(out / "stream", stream)
    query = (
        stream.writeStream.format("kafkalite")
        .options(**writing)
        .option("checkpointLocation", config["checkpoint"])
        .queryName("copied")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    progress = [json.loads(each.json) for each in query.recentProgress]
    (out / "progress.json").write_text(json.dumps([progress, query.status]))

    # Errors: of the source's check, of a task, and of options.
    for number, wrong in enumerate(
        (
            {"subscribe": f"{config['topic']}-no"},
            {"failOnDataLoss": "x"},
            {"kafka.sasl.pasword": options["kafka.sasl.password"]},
        )
    ):
        try:
            spark.read.format("kafkalite").options(**{**reading, **wrong}).load().count()
        except Exception:
            (out / f"error-{number}.txt").write_text(traceback.format_exc())
        else:
            raise AssertionError(f"{list(wrong)} was taken")


def keep_plan(path: Path, frame: DataFrame) -> None:
    """Write down what all modes of explain() say."""
    execution = frame._jdf.queryExecution()  # type: ignore[attr-defined, unused-ignore]
    explain_mode = frame.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode  # type: ignore[union-attr]
    texts = [execution.explainString(explain_mode.fromString(mode)) for mode in ("extended", "formatted", "cost")]
    path.with_suffix(".plan").write_text("\n".join([*texts, execution.toString()]))


def keep_pages(spark: SparkSession, out: Path) -> None:
    """Write down the UI's pages, those that they lead to, and what the REST interface says."""
    home = spark.sparkContext.uiWebUrl
    assert home is not None
    application = spark.sparkContext.applicationId
    waiting = [urljoin(f"{home}/", page) for page in PAGES]
    waiting += [f"{home}/api/v1/applications/{application}/{each}" for each in ("sql", "jobs", "environment")]
    seen: set[str] = set()
    while waiting:
        address = waiting.pop(0)
        if address in seen:
            continue
        seen.add(address)
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                text = answer.read().decode()
        except HTTPError:
            continue  # A page of another life cycle of the same query.
        (out / f"page-{len(seen)}.html").write_text(f"{address}\n{text}")
        for link in text.split('href="')[1:]:
            target = urljoin(address, link.partition('"')[0].replace("&amp;", "&"))
            if target.startswith(home) and "/execution/?id=" in target.lower():
                waiting.append(target)


if __name__ == "__main__":
    main(sys.argv[1])
