"""Runs the probe once on every executor of a Spark session.

The probe runs as plain Python functions over an RDD, so the executors need only Spark. Spark cannot send a task to a
given executor. The first round has as many tasks as there are executors, and idle executors take one each. Further
rounds with more tasks reach the executors that were missed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from spark_kafkalite.cli.doctor import probe
from spark_kafkalite.version import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROUNDS: Final = 4
# A task takes this time: otherwise all tasks would run on the first executor.
_DWELL_S: Final = 0.5
_REGISTERED_WITHIN_S: Final = 60
# If the number of executors is not configured, all have registered when none has done so for this time.
_SETTLED_S: Final = 3.0


def start_session(master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Return the session of ``spark-submit`` or of this environment. Raises ClickException if it is unusable.

    It sets no ``PYSPARK_PYTHON``: the doctor reports the Python that an application's session would start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise click.ClickException(f"--spark needs PySpark here: {install_command('spark')}") from None
    builder = SparkSession.builder.appName("kafkalite doctor")
    if master is not None:
        builder = builder.master(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    if not hasattr(spark, "_jsc"):
        raise click.ClickException("--spark needs classic Spark, not Spark Connect: run it on the server's host")
    return spark


def look_on_executors(
    spark: SparkSession, settings: Mapping[str, Any], addresses: Sequence[tuple[str, int]]
) -> tuple[list[dict[str, Any]], int]:
    """Return (the findings, one entry for each executor that ran a probe; the number of executors).

    ``not_before_s`` and ``not_after_s`` of an entry limit the time of its probe, by the driver's clock.
    """
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(probe)  # type: ignore[no-untyped-call]
    try:
        context = spark.sparkContext
        count = _executors(spark)
        # No object of this package, which may be missing on the executors.
        given, places, look, dwell_s = dict(settings), list(addresses), probe.look, _DWELL_S

        def task(_: Iterable[int]) -> Iterator[dict[str, Any]]:
            time.sleep(dwell_s)
            yield look(given, places, True)

        met: dict[tuple[str, int], dict[str, Any]] = {}
        for attempt in range(_ROUNDS):
            tasks = count * (1 if attempt == 0 else 4 * attempt)
            before_s = time.time()
            for each in context.parallelize(range(tasks), tasks).mapPartitions(task).collect():
                each["not_before_s"], each["not_after_s"] = before_s, time.time()
                met.setdefault((each["host"], each["process"]), each)
            if len(met) >= count:
                break
        return [met[key] for key in sorted(met)], count
    finally:
        cloudpickle.unregister_pickle_by_value(probe)  # type: ignore[no-untyped-call]


def _executors(spark: SparkSession) -> int:
    """Wait until the requested executors have registered, or for a time limit; return the number of executors.

    Raises ClickException if none has registered.
    """
    context = spark.sparkContext
    if context._jsc.sc().isLocal():
        return 1
    asked = context.getConf().get("spark.executor.instances")
    wanted = None if asked is None else max(1, int(asked))
    until = time.monotonic() + _REGISTERED_WITHIN_S
    there, since = 0, time.monotonic()
    while True:
        # The list includes the driver.
        found = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1
        now = time.monotonic()
        if found != there:
            there, since = found, now
        is_over = now > until
        are_all = there >= wanted if wanted is not None else now - since >= _SETTLED_S
        if there and (are_all or is_over):
            return there
        if is_over:
            raise click.ClickException(
                f"--spark: no executor of master {context.master} has registered within {_REGISTERED_WITHIN_S} s, so "
                "none can be checked; see the cluster manager's report on this application, or ask for less by --conf"
            )
        time.sleep(0.2)
