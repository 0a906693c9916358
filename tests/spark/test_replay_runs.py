"""Replays into a topic that are repeated, killed, throttled, or begin at the batches of a query."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from crc32c import crc32c

from spark_kafkalite import Consumer, TopicPartition
from spark_kafkalite.client.admin.configs import ConfigChange
from spark_kafkalite.jobs import replay
from spark_kafkalite.jobs.copying.replay_run import group_of
from spark_kafkalite.records import layout
from tests.interop.support.raw_client import RawClient
from tests.lab.batches import make_batch
from tests.patience import PATIENCE_S, wait_until
from tests.pool.process_tree import tree
from tests.seeds import SEED, SOAK

from .job_processes import JobProcess, wait_for_job
from .job_runs import failure, run
from .test_submitted import spark_home
from .topics import Topics

pytestmark = pytest.mark.any_spark
STAMPS = ("kafkalite-replay", "kafkalite-replay-topic", "kafkalite-replay-partition", "kafkalite-replay-offset")


def written(topics: Topics, target: str) -> list[tuple[int, dict[str, str], str]]:
    """Return (partition, headers, value) of all records of a target, in the order of their partitions."""
    rows = topics.read(target, includeHeaders="true").orderBy("partition", "offset").collect()
    return [
        (row.partition, {each.key: each.value.decode() for each in row.headers or ()}, row.value.decode())
        for row in rows
    ]


def places(topics: Topics, target: str) -> Counter[tuple[int, int]]:
    """Return how often each place of the source, (partition, offset), was written."""
    return Counter((int(headers[STAMPS[2]]), int(headers[STAMPS[3]])) for _, headers, _ in written(topics, target))


def everything(sizes: list[int]) -> Counter[tuple[int, int]]:
    return Counter((partition, offset) for partition, size in enumerate(sizes) for offset in range(size))


def until_no_task_runs(topics: Topics) -> None:
    """Wait for the tasks of a job that has failed: it does not."""
    tracker = topics.spark.sparkContext._jsc.sc().statusTracker()
    wait_until(lambda: not any(each.numRunningTasks() for each in tracker.getExecutorInfos()), "the end of all tasks")


# In as many partitions as the source has, and in others.
@pytest.mark.parametrize("partitions", [2, 3] if SOAK else [2])
def test_a_repeated_run_writes_what_the_first_start_planned_and_the_target_lacks(
    topics: Topics, partitions: int
) -> None:
    source, target = topics.new(2), topics.new(partitions, max_message_bytes="10000")
    topics.fill(source, ["a", "b", "c"], 0, headers=[("h", b"1")])
    topics.fill(source, ["d"], 1, key=b"k")
    # The target refuses the first of them, and what is written behind it stays: the run leaves a hole.
    topics.fill(source, ["x" * 20_000, "e"], 1)
    run_id = f"again-{target}"
    arguments = ("--topic", source, "--from-offsets", '{"0": 1, "1": 0}', "--to-topic", target, "--run-id", run_id)
    assert "MESSAGE_TOO_LARGE" in failure(replay, topics, *arguments)
    until_no_task_runs(topics)
    topics.admin.incremental_alter_configs([ConfigChange("max.message.bytes", "set", "1000000")], topic=target)
    others = topics.values(target)
    topics.fill(target, ["from elsewhere"])
    topics.fill(source, ["too late"])
    summary = run(replay, topics, *arguments)
    assert (summary["records"], summary["present_before"]) == (5 - len(others), len(others))
    # Also of the record that came too late, and of those that the run has written.
    assert {each.records for each in topics.admin.group_lag(group_of(run_id)).values()} == {0}
    assert run(replay, topics, *arguments)["records"] == 0
    found = [each for each in written(topics, target) if each[2] != "from elsewhere"]
    assert sorted(value[:9] for _, _, value in found) == ["b", "c", "d", "e", "x" * 9]
    by_value = {value[:9]: headers for _, headers, value in found}
    assert by_value["c"] == {"h": "1", **dict(zip(STAMPS, (run_id, source, "0", "2"), strict=True))}
    other_range = ("--topic", source, "--from-offsets", '{"0": 0, "1": 0}', *arguments[4:])
    assert "that run was begun with another range" in failure(replay, topics, *other_range)
    topics.admin.delete_groups([group_of(run_id)])
    assert f"group kafkalite-replay-{run_id}, which remembers where it began, is gone" in failure(
        replay, topics, *arguments
    )


def test_a_copy_keeps_timestamps_that_spark_cannot_hold_too(topics: Topics) -> None:
    """The sentences of docs/replay.md, to which docs/mirror.md refers."""
    any_time = {"message_timestamp_after_max_ms": str(2**63 - 1)}
    source, target = topics.new(**any_time), topics.new(**any_time)
    before_1970, stamped = topics.new(), topics.new(message_timestamp_type="LogAppendTime")
    last_ms = 9_223_372_036_854_775
    for timestamp_ms in (0, last_ms, last_ms + 1000, -1):
        append(topics, source, timestamp_ms)
    append(topics, before_1970, -2)
    began_ms = int(time.time() * 1000)

    def replayed(topic: str) -> list[int]:
        arguments = ("--topic", source, "--from-offsets", '{"0": 0}', "--to-topic", topic)
        assert run(replay, topics, *arguments)["records"] == 4
        with Consumer(bootstrap_servers=topics.bootstrap) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek_to_beginning()
            return [record.timestamp for record in consumer.poll(PATIENCE_S * 1000)]

    assert replayed(target) == [0, last_ms, last_ms + 1000, -1]
    assert all(began_ms <= each < last_ms for each in replayed(stamped))
    arguments = ("--topic", before_1970, "--from-offsets", '{"0": 0}', "--to-topic", target)
    assert "timestamp -2 is not between -1 (none)" in failure(replay, topics, *arguments)


def append(topics: Topics, topic: str, timestamp_ms: int) -> None:
    """Append one record as another producer may: ours refuses such times."""
    batch = make_batch([b"v"])
    # Base and maximal timestamp stand side by side.
    struct.pack_into(">qq", batch, layout.MAX_TIMESTAMP_POSITION - 8, timestamp_ms, timestamp_ms)
    struct.pack_into(">I", batch, layout.CRC_POSITION, crc32c(bytes(batch[layout.CRC_START :])))
    topics.admin.list_offsets({TopicPartition(topic, 0): 0})  # waits for the partition's leader
    with RawClient(topics.bootstrap) as client:
        assert client.produce(topic, batch).error_code == 0


def test_a_run_is_not_repeated_into_a_topic_that_is_not_what_it_was(topics: Topics) -> None:
    source, target = topics.new(), topics.new()
    topics.fill(source, ["a", "b"])
    arguments = ("--topic", source, "--from-offsets", '{"0": 0}', "--run-id", "strict", "--to-topic")
    compacted = topics.new(cleanup_policy="compact")
    assert "has cleanup.policy=compact" in failure(replay, topics, *arguments, compacted)
    assert run(replay, topics, *arguments, target)["records"] == 2
    topics.admin.delete_records({TopicPartition(target, 0): 1})
    assert "the run began to write at offset 0" in failure(replay, topics, *arguments, target)
    topics.admin.delete_topics([target])
    topics.admin.create_topic(target, 1)
    assert "give another --run-id" in failure(replay, topics, *arguments, target)


def test_a_dry_run_shows_ranges_and_bytes_and_writes_nothing(topics: Topics) -> None:
    source, target = topics.new(2), topics.new()
    topics.fill(source, ["x" * 1_000] * 20, 0)
    arguments = ("--topic", source, "--from-offsets", '{"0": 5, "1": 0}', "--to-topic", target, "--run-id", "dry")
    shown = run(replay, topics, *arguments, "--dry-run")
    assert (shown["offsets"], shown["target"], shown["begun"]) == (15, target, False)
    assert [(each["partition"], each["start"], each["until"]) for each in shown["ranges"]] == [(0, 5, 20)]
    assert 15_000 < shown["bytes"] < 18_000
    said = CliRunner().invoke(replay.main, ["--bootstrap-server", topics.bootstrap, *arguments, "--dry-run"]).output
    assert f"  {source}-0: offsets 5 to 20 (exclusive), about " in said
    assert topics.values(target) == []
    assert topics.admin.group_offsets(group_of("dry")) == {}


def test_a_range_of_the_batches_of_a_query(topics: Topics, checkpoint: str) -> None:
    source, target = topics.new(), topics.new()
    topics.fill(source, range(6))
    topics.run(topics.stream(source, maxOffsetsPerTrigger=2), checkpoint)
    arguments = ("--topic", source, "--to-topic", target, "--from-checkpoint", checkpoint)
    assert run(replay, topics, *arguments, "--batch", "1..1")["records"] == 2
    assert topics.values(target) == ["2", "3"]
    topics.fill(source, ["new"])
    shown = run(replay, topics, *arguments, "--dry-run")
    assert [(each["start"], each["until"]) for each in shown["ranges"]] == [(4, 7)]
    assert "there is no such batch" in failure(replay, topics, *arguments, "--batch", "7")
    topics.admin.delete_records({TopicPartition(source, 0): 5})
    said = failure(replay, topics, *arguments, "--batch", "1")
    assert "the start of batch 1 of file:" in said and ", offset 2 is not in the log" in said


def test_a_time_is_named_as_it_was_given(topics: Topics, tmp_path: Path) -> None:
    source = topics.new()
    topics.fill(source, ["a"], timestamp_ms=1_000)
    topics.fill(source, ["b"], timestamp_ms=2_000)
    arguments = ("--topic", source, "--from-timestamp", "1970-01-01T00:00:01.5Z", "--destination", str(tmp_path))
    said = failure(replay, topics, *arguments, "--to-offsets", '{"0": 0}')
    assert "the time of --from-timestamp, 1970-01-01T00:00:01.500+00:00, lies beyond --to-offsets 0" in said


# Kills ----------------------------------------------------------------------------------------------------------------


class KilledReplay:
    """A replay of a process of its own, which is killed and repeated."""

    def __init__(self, topics: Topics, directory: Path, sizes: list[int], target_partitions: int) -> None:
        self.topics = topics
        self.sizes = sizes
        self.source = topics.new(len(sizes))
        self.target = topics.new(target_partitions, "target")
        # The broker, which others use as well, remembers it.
        self.run_id = f"killed-{self.target}"
        self.directory = directory
        self.master = "local[2]"
        self.conf = {"spark.sql.warehouse.dir": str(directory / "warehouse")}
        self.variables: dict[str, str] = {}
        for partition, size in enumerate(sizes):
            topics.fill(self.source, (f"{partition}-{number}-{'x' * 1_000}" for number in range(size)), partition)
        offsets = json.dumps(dict.fromkeys(map(str, range(len(sizes))), 0))
        self.arguments = [
            "--topic", self.source, "--from-offsets", offsets, "--to-topic", self.target, "--run-id", self.run_id,
        ]  # fmt: skip

    @property
    def count(self) -> int:
        """How many records are in the target."""
        partitions = [TopicPartition(self.target, number) for number in range(len(self.partitions()))]
        ends = self.topics.admin.list_offsets(dict.fromkeys(partitions, -1))
        return sum(each.offset for each in ends.values() if each is not None)

    def partitions(self) -> tuple[Any, ...]:
        return self.topics.admin.describe_topics([self.target])[self.target].partitions

    def start(self, bytes_per_second: str) -> JobProcess:
        """Start it, so slow that it can be stopped in the middle."""
        given = ["--bootstrap-server", self.topics.bootstrap, *self.arguments]
        return JobProcess(
            self.directory, "replay", *given, "--max-bytes-per-second", bytes_per_second,
            master=self.master, conf=self.conf, **self.variables,
        )  # fmt: skip

    def wait_for_count(self, process: JobProcess, count: int) -> None:
        """Wait until the target has more records than that."""
        wait_for_job(process, lambda: self.count > count, f"beyond record {count} of the target")

    def kill_when(self, holds: Callable[[], bool], bytes_per_second: str) -> None:
        """Run it until something holds, and kill it with all the processes that it has started."""
        with self.start(bytes_per_second) as process:
            wait_for_job(process, holds, "where it is to be killed")

    def finish(self) -> None:
        summary = run(replay, self.topics, *self.arguments)
        assert summary["offsets"] == sum(self.sizes)
        assert summary["records"] + summary["present_before"] == sum(self.sizes)


@pytest.mark.soak
def test_a_killed_replay_goes_on_and_has_every_record_once(topics: Topics, tmp_path: Path) -> None:
    job = KilledReplay(topics, tmp_path, [300, 200], 2)
    # The whole takes 50 seconds, so that it is killed in the middle.
    job.kill_when(lambda: job.count > 20, "10k")
    assert 20 < job.count < 500
    job.finish()
    assert places(topics, job.target) == everything(job.sizes)
    # With as many partitions, and in their order.
    assert [value.split("-x")[0] for _, _, value in written(topics, job.target)] == [
        f"{partition}-{number}" for partition, size in enumerate(job.sizes) for number in range(size)
    ]


if SOAK:  # These take long, and a skip would say that something is missing here.

    def test_a_replay_goes_no_faster_than_it_may(topics: Topics) -> None:
        source, target = topics.new(2), topics.new(2)
        for partition in range(2):
            topics.fill(source, ["x" * 10_000] * 20, partition)
        arguments = ("--topic", source, "--from-offsets", '{"0": 0, "1": 0}', "--to-topic", target)
        began_s = time.monotonic()
        # Two tasks with half of it each; the first piece of each is not waited for.
        assert run(replay, topics, *arguments, "--max-bytes-per-second", "160k")["records"] == 40
        assert time.monotonic() - began_s > 400_000 / 163_840 * 0.85
        assert len(topics.values(target)) == 40

    @pytest.mark.timeout(3_000)
    @pytest.mark.parametrize("target_partitions", [3, 5])
    def test_a_replay_is_killed_ten_times(topics: Topics, tmp_path: Path, target_partitions: int) -> None:
        print(f"KAFKALITE_SEED={SEED}")
        chance = random.Random(SEED)
        job = KilledReplay(topics, tmp_path, [4_000, 3_000, 1_000], target_partitions)
        total = sum(job.sizes)
        for turn in range(10):
            # Anywhere from before the first record to what is left at this turn.
            aim = job.count + chance.randrange(max(1, (total - job.count) // (10 - turn)))
            after_s = chance.uniform(0, 0.5)

            def comes(aim: int = aim, after_s: float = after_s) -> bool:
                if job.count < aim or not topics.admin.group_offsets(group_of(job.run_id)):
                    return False
                time.sleep(after_s)
                return True

            job.kill_when(comes, "400k")
            print(f"turn {turn}: killed at {job.count} records, aimed at {aim} and {after_s:.2f} s")
        job.finish()
        assert places(topics, job.target) == everything(job.sizes)

    @pytest.mark.timeout(600)
    def test_a_run_that_another_process_writes_is_not_begun(topics: Topics, tmp_path: Path) -> None:
        job = KilledReplay(topics, tmp_path, [5_000], 1)
        with job.start("20k") as process:
            job.wait_for_count(process, 20)
            said = failure(replay, topics, *job.arguments)
            assert process.process.running, process.process.tail()
        assert "another process goes on to write this run" in said
        job.finish()
        assert places(topics, job.target) == everything(job.sizes)

    @pytest.mark.timeout(600)
    def test_an_executor_is_lost_in_a_replay(topics: Topics, tmp_path: Path) -> None:
        """The task that Spark runs again looks first, so that at most what was on its way comes twice."""
        job = KilledReplay(topics, tmp_path, [600, 600], 2)
        job.variables["SPARK_HOME"] = str(spark_home(tmp_path))
        job.master = "local-cluster[2,1,512]"
        job.conf["spark.executor.memory"] = "512m"
        with job.start("50k") as process:
            job.wait_for_count(process, 200)
            executors = executors_of(process.process.pid)
            assert len(executors) == 2
            os.kill(executors[0], signal.SIGKILL)
            at = job.count
            assert process.wait(5 * PATIENCE_S) == 0, process.process.tail()
        found = places(topics, job.target)
        assert set(found) == set(everything(job.sizes))
        again = sum(found.values()) - len(found)
        print(f"killed at {at} records, {again} came again")
        # A piece of a tenth of a second is on its way at a time; without the look it would be half of what was there.
        assert again <= 10


def executors_of(pid: int) -> list[int]:
    """Return the executors' processes among those that a process has started, or what it has started has."""
    found = []
    for each in tree(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{each}/cmdline").read_bytes():
                found.append(each)
    return found
