"""What the replay job says before it runs."""

import json
import re

import pytest
from click.testing import CliRunner

from spark_kafkalite.model import LogBounds, TopicPartition
from spark_kafkalite.spark.jobs import replay
from spark_kafkalite.spark.jobs.planning import PlanError
from tests.paths import PROJECT

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
YEAR_2036_MS = 2_082_758_400_000


def test_help_and_readme_say_that_a_replay_run_twice_writes_twice() -> None:
    shown = " ".join(CliRunner().invoke(replay.main, ["--help"]).output.split())
    assert "run twice, or run again after one that failed, it writes records twice" in shown
    readme = " ".join((PROJECT / "README.md").read_text().split())
    assert "run twice, or again after a failure, it writes records twice" in readme


def test_the_readme_s_offsets_name_every_partition_of_its_topic() -> None:
    readme = (PROJECT / "README.md").read_text()
    (partitions,) = re.findall(r"create --topic events --partitions (\d+)", readme)
    (offsets,) = re.findall(r"--from-offsets '(.*)'", readme)
    assert json.loads(offsets).keys() == {str(number) for number in range(int(partitions))}


@pytest.mark.parametrize("end", ["2013-10-01", "2013-09-30"])
def test_a_time_range_without_time_in_it_is_refused(end: str) -> None:
    arguments = ["--topic", "t", "--destination", "d", "--from-timestamp", "2013-10-01", "--to-timestamp", end]
    result = CliRunner().invoke(replay.main, arguments)
    assert result.exit_code == 2
    said = f"--from-timestamp 2013-10-01T00:00:00.000+00:00 is not before --to-timestamp {end}T00:00:00.000+00:00"
    assert said in " ".join(result.output.split())


def test_offsets_must_name_every_partition() -> None:
    bounds = dict.fromkeys((P0, P1, P2), LogBounds(0, 9))
    with pytest.raises(PlanError, match=r"not every partition of topic t: it lacks t-0, t-1; .*-2 is the earliest"):
        replay.check_all_named("t", bounds, {2: 5})
    replay.check_all_named("t", bounds, {0: -2, 1: 4, 2: 5})


def test_offsets_may_be_the_ends_of_the_log() -> None:
    bounds = {P0: LogBounds(3, 9), P1: LogBounds(4, 8)}
    # Without a time nothing is asked of the cluster.
    found = replay._positions(None, "t", bounds, None, {0: -2, 1: -1, 2: -2})  # type: ignore[arg-type]
    assert found == {P0: 3, P1: 8, P2: -2}  # planning refuses the partition that is not there


@pytest.mark.parametrize(
    ("log", "start", "from_timestamp", "said"),
    [
        (LogBounds(4, 4), 4, YEAR_2036_MS, "topic t holds no records"),
        (LogBounds(4, 9), 9, YEAR_2036_MS, "topic t holds no record of 2036-01-01T00:00:00.000+00:00 or later"),
        (LogBounds(4, 9), 9, 10**18, "topic t holds no record of 1000000000000000000 ms or later"),
        (LogBounds(4, 9), 5, YEAR_2036_MS, "topic t holds records, but none between the start and the end"),
        (LogBounds(4, 9), 9, None, "topic t holds records, but none between the start and the end"),
    ],
)
def test_a_replay_of_nothing_says_why(log: LogBounds, start: int, from_timestamp: int | None, said: str) -> None:
    told = replay.nothing_to_replay("t", {P0: log}, {P0: start}, from_timestamp)
    assert told.startswith(f"nothing to replay: {said}")
