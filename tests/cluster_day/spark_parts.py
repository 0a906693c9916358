"""What Spark does all day: a stream into files, and a load into files every hour; each in processes of its own."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet

from spark_kafkalite.processes.child_process import ChildFailed, ChildProcess
from spark_kafkalite.processes.java_process import SHORT_LIVED_OPTIONS
from tests.cluster_day.counts import Row
from tests.cluster_day.part import TOPIC, Part, PartFailed, Plan, spark_environment
from tests.spark.job_processes import JobProcess

_MASTER: Final = "local[2]"
_TRIGGER_EVERY_S: Final = 10
_DRAIN_WITHIN_S: Final = 300.0
# An hour of a short day is shorter than the start of a Spark.
_LOAD_EVERY_S: Final = 30.0
_LOAD_WITHIN_S: Final = 240.0
_LOOK_S: Final = 0.5
# Spark gives a Python process ten seconds to start and to connect (PythonWorkerFactory.createSimpleWorker), and no
# setting changes that. On a machine that is too busy for it the application is started again, as its user would, and
# goes on from where it was; how often is in the report.
_TOO_BUSY: Final = "Python worker failed to connect back"
_STARTS_AGAIN_AT_MOST: Final = 3


def spark_app(name: str, directory: Path, output: str, **config: object) -> ChildProcess:
    """Start one of this folder's applications; its output goes to files of that name."""
    conf = {
        "spark.master": _MASTER,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(SHORT_LIVED_OPTIONS),
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    script = str(Path(__file__).with_name(f"{name}.py"))
    command = [sys.executable, script, json.dumps({**config, "conf": conf})]
    return ChildProcess(command, directory, output, environment=spark_environment(), working_directory=directory)


def was_too_slow(app: ChildProcess) -> bool:
    """Whether an application has ended because the machine was too busy for Spark."""
    return bool(app.returncode) and _TOO_BUSY in app.stderr_path.read_text(encoding="utf-8", errors="replace")


class SparkStream(Part):
    """The stream, killed once around noon and started again from its checkpoint.

    ``kills`` counts that, ``slow_starts`` how often the machine was too busy.
    """

    def __init__(self, plan: Plan, bootstrap: str) -> None:
        super().__init__("Spark stream")
        self._bootstrap = bootstrap
        self._directory = plan.directory / "stream"
        self.files = self._directory / "files"
        self._end = self._directory / "end"
        self._kill_after_s = plan.seconds * plan.chance(self.name).uniform(0.4, 0.6)
        self._app: ChildProcess | None = None
        self.kills = 0
        self.slow_starts = 0

    def run(self) -> None:
        began = time.monotonic()
        self._directory.mkdir()
        self._app = self._start()
        while not self.stopping.wait(_LOOK_S):
            if was_too_slow(self._app) and self.slow_starts < _STARTS_AGAIN_AT_MOST:
                self.slow_starts += 1
                self._app = self._start()
            elif not self._app.running:
                raise PartFailed(f"it ended by itself, exit code {self._app.returncode}{self._app.tail(40)}")
            if not self.kills and time.monotonic() - began > self._kill_after_s and self._batches():
                self._app.kill()
                self.kills += 1
                self._app = self._start()

    def drain(self) -> None:
        """Have it read all there is, and wait for its end. Raises PartFailed."""
        if self._app is None:
            raise PartFailed("the stream was not started")
        self._end.touch()
        try:
            code = self._app.wait(_DRAIN_WITHIN_S)
        except ChildFailed as error:
            raise PartFailed(str(error)) from error
        if code != 0:
            raise PartFailed(f"the stream ended with exit code {code}{self._app.tail(40)}")

    def close(self) -> None:
        super().close()
        if self._app is not None:
            self._app.kill()

    def _batches(self) -> int:
        """Return how many batches are complete."""
        return sum(entry.name.isdigit() for entry in (self._directory / "checkpoint" / "commits").glob("*"))

    def _start(self) -> ChildProcess:
        return spark_app(
            "stream_app",
            self._directory,
            f"stream-{self.kills + self.slow_starts + 1}",
            bootstrap=self._bootstrap,
            topic=TOPIC,
            out=str(self.files),
            checkpoint=str(self._directory / "checkpoint"),
            every=f"{_TRIGGER_EVERY_S} seconds",
            end=str(self._end),
        )


class HourlyLoad(Part):
    """``kafkalite jobs run hadoop_load``, once an hour.

    ``records`` has what each run has loaded; ``slow_starts`` counts runs for which the machine was too busy.
    """

    def __init__(self, plan: Plan, bootstrap: str) -> None:
        super().__init__("hourly load")
        self._bootstrap = bootstrap
        self._directory = plan.directory / "load"
        self._every_s = max(plan.hour_s, _LOAD_EVERY_S)
        self.destination = self._directory / "destination"
        self.records: list[int] = []
        self.slow_starts = 0
        self._job: JobProcess | None = None

    def run(self) -> None:
        due = time.monotonic() + self._every_s
        while not self.stopping.wait(max(due - time.monotonic(), 0)):
            due += self._every_s
            self.load()

    def load(self) -> None:
        """Run the job until it has loaded. Raises PartFailed when it fails."""
        while not self._has_loaded():
            self.slow_starts += 1

    def _has_loaded(self) -> bool:
        arguments = ("--bootstrap-server", self._bootstrap, "--topic", TOPIC, "--destination", str(self.destination))
        with JobProcess(self._directory, "hadoop_load", *arguments, "--json", **spark_environment()) as job:
            self._job = job
            try:
                code = job.wait(_LOAD_WITHIN_S)
            except ChildFailed as error:
                raise PartFailed(str(error)) from error
            if was_too_slow(job.process) and self.slow_starts < _STARTS_AGAIN_AT_MOST:
                return False
            if code != 0:
                raise PartFailed(f"hadoop_load ended with exit code {code}{job.process.tail(40)}")
            self.records.append(json.loads(job.process.stdout_text().splitlines()[-1])["records"])
        return True

    def close(self) -> None:
        super().close()
        if self._job is not None:
            self._job.process.kill()


def rows_of_files(directory: Path, stream: SparkStream, load: HourlyLoad) -> dict[str, list[Row]]:
    """Return the rows of both parts' files, as Spark reads them. Raises ChildFailed."""
    directory.mkdir()
    app = spark_app(
        "rows_app",
        directory,
        "rows",
        stream=str(stream.files),
        load=str(load.destination),
        rows=str(directory),
    )
    try:
        if app.wait(_DRAIN_WITHIN_S) != 0:
            raise ChildFailed(f"the files cannot be read{app.tail(40)}")
    finally:
        app.kill()
    return {name: list(_rows(directory / f"{name}.parquet")) for name in ("stream", "load")}


def _rows(path: Path) -> Iterator[Row]:
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
        yield from zip(*columns, strict=True)
