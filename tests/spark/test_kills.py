"""A driver that is killed between any two steps of a batch, and an executor that is lost in one: the files of Spark's
own file sink have every record once. A topic has every record, some more than once, but each stamp stands for one.

The soak alone kills applications. tests/spark/test_streaming.py, test_stamps.py and test_checkpoints.py repeat batches
that failed or were not committed, without a process of their own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.seeds import SEED

from .class_archive import java_options
from .killed_app import STEPS, TOPIC_STEPS
from .test_stamps import STAMPS, stamped
from .test_submitted import spark_home
from .topics import Topics

pytestmark = [pytest.mark.soak, pytest.mark.any_spark, pytest.mark.timeout(6000)]

APP = Path(__file__).with_name("killed_app.py")
RECORDS, PARTITIONS = 400, 2
TURNS = 5


class Application:
    """The application, run again and again over the same directories."""

    def __init__(self, directory: Path, topics: Topics, master: str = "local[2]") -> None:
        self.directory = directory
        self.topic = topics.new(PARTITIONS)
        for partition in range(PARTITIONS):
            topics.fill(self.topic, range(partition, RECORDS, PARTITIONS), partition=partition)
        self.home = spark_home(directory)
        options = java_options()
        self.config: dict[str, Any] = {
            "bootstrap": topics.bootstrap,
            "topic": self.topic,
            "checkpoint": str(directory / "checkpoint"),
            "batch": RECORDS // 10,
            "conf": {
                "spark.master": master,
                "spark.executor.memory": "512m",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.extraJavaOptions": options,
                "spark.executor.extraJavaOptions": options,
                "spark.local.dir": str(directory / "local"),
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
            },
        }

    def run(self, **more: object) -> tuple[int, str]:
        """Run it in a process group of its own; return its exit code and its last line. Nothing of it is left."""
        path = self.directory / "config.json"
        path.write_text(json.dumps({**self.config, **more}))
        log = self.directory / "log.txt"
        environment = {**os.environ, "SPARK_HOME": str(self.home), "PYSPARK_PYTHON": sys.executable}
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [sys.executable, str(APP), str(path)],
                stdout=subprocess.PIPE, stderr=errors, env=environment, start_new_session=True, text=True,
            ) as process,
        ):  # fmt: skip
            try:
                output, _ = process.communicate(timeout=15 * PATIENCE_S)
            finally:
                # The application, if it hangs.
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode in (0, -signal.SIGKILL), log.read_text(errors="replace")[-4000:]
        return process.returncode, output

    def finish(self, **more: object) -> list[list[Any]]:
        """Run it to its end; return what is in the files."""
        code, output = self.run(**more)
        assert code == 0
        found: list[list[Any]] = json.loads(output.splitlines()[-1])
        return found

    def kill(self, step: str, chance: random.Random, **more: object) -> None:
        """Run it until it is killed at a step, or up to 0.3 s after it."""
        code, _ = self.run(step=step, after_s=chance.choice((0, chance.uniform(0, 0.3))), **more)
        assert code == -signal.SIGKILL, f"it has ended before batch 2 came to {step}"

    def everything(self) -> list[list[Any]]:
        return sorted([number % PARTITIONS, number // PARTITIONS, str(number)] for number in range(RECORDS))


@pytest.fixture
def chance() -> random.Random:
    print(f"KAFKALITE_SEED={SEED}")
    return random.Random(SEED)


def turns(directory: Path) -> Iterator[Path]:
    for turn in range(TURNS):
        (directory / str(turn)).mkdir()
        yield directory / str(turn)


def test_a_driver_is_killed_between_the_steps_of_a_batch(topics: Topics, tmp_path: Path, chance: random.Random) -> None:
    for directory in turns(tmp_path):
        application = Application(directory, topics)
        out = str(directory / "out")
        for step in STEPS:
            application.kill(step, chance, out=out)
        assert application.finish(out=out) == application.everything()


def check_target(application: Application, topics: Topics, target: str) -> int:
    """Check what is in a topic that killed applications have written; return how often a record is there again."""
    found = stamped(topics, target)
    by_stamp: dict[tuple[str, ...], set[str]] = {}
    for headers, value in found:
        by_stamp.setdefault(tuple(headers[name] for name in STAMPS), set()).add(value.decode())
    assert {len(values) for values in by_stamp.values()} == {1}, "a stamp stands for several records"
    once = sorted(value for values in by_stamp.values() for value in values)
    # With a record lost, or one that came again under another stamp, this would be something else.
    assert once == sorted(value for _, _, value in application.everything())
    return len(found) - len(once)


def test_a_driver_is_killed_that_writes_into_a_topic(topics: Topics, tmp_path: Path, chance: random.Random) -> None:
    again = 0
    for directory in turns(tmp_path):
        application, target = Application(directory, topics), topics.new(2, "target")
        for step in TOPIC_STEPS:
            application.kill(step, chance, target=target)
        application.finish(target=target)
        again += check_target(application, topics, target)
    print(f"{again} records came again")
    # Records were there, and the end of their batch was not.
    assert again


def test_an_executor_is_lost_in_a_batch(topics: Topics, tmp_path: Path) -> None:
    application = Application(tmp_path, topics, "local-cluster[2,1,512]")
    marker, out = tmp_path / "lost", str(tmp_path / "out")
    assert application.finish(out=out, lose_executor=str(marker), lose_at=47) == application.everything()
    assert marker.exists()


def test_an_executor_is_lost_that_writes_into_a_topic(topics: Topics, tmp_path: Path) -> None:
    application, target = Application(tmp_path, topics, "local-cluster[2,1,512]"), topics.new(2, "target")
    marker = tmp_path / "lost"
    application.finish(target=target, lose_executor=str(marker), lose_at=47)
    assert marker.exists()
    # Whether any come again depends on how many the sink had gathered.
    print(f"{check_target(application, topics, target)} records came again")
