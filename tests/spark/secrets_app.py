"""A Spark application that uses the source, the sink and a job with secrets, and keeps all that can be seen of it.

Run as a program with one argument, a JSON file (see ``test_secrets.py``, which writes it). ``out`` gets plans, errors,
progress and the pages of the UI; standard output and error are the driver's log.
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

# Where Spark's UI shows what queries do; what they link to is looked at as well.
PAGES = ("jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/")
# Lines of the log between which a statement is run that holds the secrets as text.
SQL_BEGINS, SQL_ENDS = "=== SQL with secrets begins", "=== SQL with secrets ends"


def main(config_path: str) -> None:
    config = json.loads(Path(config_path).read_text())
    builder = SparkSession.builder.appName("secrets")
    for name, value in config["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("DEBUG")
    try:
        run(spark, config, Path(config["out"]))
    finally:
        spark.stop()


def run(spark: SparkSession, config: dict[str, Any], out: Path) -> None:
    options = config["options"]
    reading = {**options, "subscribe": config["topic"], "startingOffsets": "earliest"}
    writing = {**options, "topic": config["to_topic"]}

    frame = spark.read.format("kafkalite").options(**reading).load()
    keep_plan(out / "batch", frame)
    (out / "rows").write_text(str(frame.count()))
    (out / "texts").write_text(repr([frame, spark.read.format("kafkalite").options(**reading), frame.schema]))
    frame.select("key", "value").write.format("kafkalite").options(**writing).mode("append").save()
    frame.createOrReplaceTempView("records")
    keep_plan(out / "view", spark.sql("SELECT count(*) FROM records"))

    stream = spark.readStream.format("kafkalite").options(**reading).load().select("key", "value")
    keep_plan(out / "stream", stream)
    query = (
        stream.writeStream.format("kafkalite")
        .options(**writing, checkpointLocation=config["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(True)
    (out / "progress").write_text(json.dumps([[each.json for each in query.recentProgress], query.status]))

    keep_job(config, out)
    keep_errors(spark, reading, config["errors"], out)
    keep_pages(spark, out)

    clause = ", ".join(f"`{name}` '{value}'" for name, value in reading.items())
    print(SQL_BEGINS, flush=True)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW leaking USING kafkalite OPTIONS ({clause})").collect()
    print(SQL_ENDS, flush=True)
    # What Spark shows without being told what not to. The query is not run, so that this stays in the plan.
    spark.conf.unset("spark.sql.redaction.options.regex")
    keep_plan(out / "unredacted", spark.readStream.format("kafkalite").options(**reading).load())


def keep_plan(path: Path, frame: DataFrame) -> None:
    """Write down what all modes of explain() say."""
    execution = frame._jdf.queryExecution()
    modes = frame.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode  # type: ignore[union-attr]
    texts = [execution.explainString(modes.fromString(mode)) for mode in ("extended", "formatted", "cost")]
    path.with_suffix(".plan").write_text("\n".join([*texts, execution.toString()]))


def keep_job(config: dict[str, Any], out: Path) -> None:
    """Run the load job in this session, and write down what it prints; its manifests are in the destination."""
    from click.testing import CliRunner

    from spark_kafkalite.jobs import hadoop_load

    arguments = ["--bootstrap-server", config["options"]["kafka.bootstrap.servers"], "--topic", config["topic"]]
    arguments += ["--command-config", config["command_config"], "--destination", config["destination"], "--json"]
    # By tasks, which Spark tells its listeners and its history of.
    arguments += ["--driver-bytes", "0"]
    done = CliRunner().invoke(hadoop_load.main, arguments)
    (out / "job").write_text(done.output)
    assert done.exit_code == 0, done.output


def keep_errors(spark: SparkSession, reading: dict[str, str], errors: list[dict[str, str]], out: Path) -> None:
    """Write down the tracebacks of reads with other options."""
    for number, wrong in enumerate(errors):
        try:
            spark.read.format("kafkalite").options(**{**reading, **wrong}).load().count()
        except Exception as error:
            (out / f"error-{number}").write_text(f"{traceback.format_exc()}\n{error!r}\n{error.args}")
        else:
            raise AssertionError(f"{list(wrong)} was taken")


def keep_pages(spark: SparkSession, out: Path) -> None:
    """Write down the UI's pages, those that they lead to, and what the REST interface says."""
    home = spark.sparkContext.uiWebUrl
    assert home is not None
    application = f"{home}/api/v1/applications/{spark.sparkContext.applicationId}"
    waiting = [urljoin(f"{home}/", page) for page in PAGES]
    waiting += [f"{application}/{each}" for each in ("sql?details=true&planDescription=true", "jobs", "environment")]
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
            continue  # It links to what is no longer kept.
        (out / f"page-{len(seen)}").write_text(f"{address}\n{text}")
        targets = [urljoin(address, link.partition('"')[0].replace("&amp;", "&")) for link in text.split('href="')[1:]]
        waiting += [each for each in targets if each.startswith(home) and "?id=" in each]


if __name__ == "__main__":
    logging.getLogger("py4j").setLevel(logging.INFO)
    main(sys.argv[1])
