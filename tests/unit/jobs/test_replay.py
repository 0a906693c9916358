"""What the replay job says before it runs."""

import pytest
from click.testing import CliRunner

from spark_kafkalite.jobs import replay
from spark_kafkalite.jobs.copying.replay_options import AskedRange, check_all_named, nothing_to_replay
from spark_kafkalite.jobs.copying.replay_plan import QueryBatches
from spark_kafkalite.jobs.load.planning import PlanError
from spark_kafkalite.model import LogBounds, TopicPartition
from tests.paths import PROJECT

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
YEAR_2036_MS = 2_082_758_400_000


def test_help_and_readme_say_that_a_replay_run_twice_writes_twice() -> None:
    shown = " ".join(CliRunner().invoke(replay.main, ["--help"]).output.split())
    assert "run twice, or run again after one that failed, it writes records twice" in shown
    readme = " ".join((PROJECT / "README.md").read_text().split())
    assert "a replay that runs twice writes records twice" in readme


@pytest.mark.parametrize("end", ["2013-10-01", "2013-09-30"])
def test_a_time_range_without_time_in_it_is_refused(end: str) -> None:
    arguments = ["--topic", "t", "--destination", "d", "--from-timestamp", "2013-10-01", "--to-timestamp", end]
    result = CliRunner().invoke(replay.main, arguments)
    assert result.exit_code == 2
    said = f"--from-timestamp 2013-10-01T00:00:00.000+00:00 is not before --to-timestamp {end}T00:00:00.000+00:00"
    assert said in " ".join(result.output.split())


def test_a_time_before_1970_is_refused() -> None:
    """A lookup by -1 gives the end of the log, not the first record of that time or later."""
    arguments = ["--topic", "t", "--destination", "d", "--from-timestamp", "1969-12-31T23:59:59.999Z"]
    result = CliRunner().invoke(replay.main, arguments)
    assert result.exit_code == 2
    assert "nor an ISO 8601 time of 1970 or later" in " ".join(result.output.split())


FILES, TOPIC = ["--destination", "d"], ["--to-topic", "u"]
OFFSETS = ["--from-offsets", '{"0": 1}']


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*FILES], "give exactly one of --from-timestamp, --from-offsets and --from-checkpoint"),
        ([*FILES, *OFFSETS, "--from-checkpoint", "c"], "give exactly one of"),
        ([*OFFSETS], "give exactly one of --to-topic and --destination"),
        ([*FILES, *OFFSETS, "--batch", "5"], "--batch needs --from-checkpoint DIR"),
        ([*FILES, "--from-checkpoint", "c", "--batch", "5.."], "'5..' is neither the number of a batch"),
        ([*FILES, "--from-checkpoint", "c", "--batch", "5..4"], "'5..4' ends with batch 4, before it begins"),
        (
            [*FILES, "--from-checkpoint", "c", "--batch", "5..6", "--to-offsets", "{}"],
            "give --to-offsets or --batch 5..6, not both",
        ),
        ([*FILES, *OFFSETS, "--to-timestamp", "5", "--to-offsets", "{}"], "give --to-timestamp or --to-offsets"),
        ([*FILES, *OFFSETS, "--exact-time"], "--exact-time needs --from-timestamp, --to-timestamp or both"),
        ([*FILES, *OFFSETS, "--run-id", "r"], "--run-id needs --to-topic"),
        ([*FILES, *OFFSETS, "--max-bytes-per-second", "1m"], "--max-bytes-per-second needs --to-topic"),
        ([*TOPIC, *OFFSETS, "--run-id", "a b"], "'a b': must be 1 to 100 letters, digits"),
        ([*TOPIC, *OFFSETS, "--max-bytes-per-second", "fast"], "'fast' is no size above 0"),
        ([*TOPIC, *OFFSETS, "--max-bytes-per-second", "0"], "'0' is no size above 0"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(replay.main, ["--topic", "t", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize("option", [("--lease", "60s"), ("--wait", "0"), ("--partition-by", "day")], ids=lambda o: o[0])
def test_options_of_a_directory_need_one(option: tuple[str, str]) -> None:
    result = CliRunner().invoke(replay.main, ["--topic", "t", "--from-timestamp", "0", "--to-topic", "u", *option])
    assert (result.exit_code, result.output.splitlines()[-1]) == (2, f"Error: {option[0]} needs --destination")


def test_the_same_range_has_the_same_digest() -> None:
    one = AskedRange("t", from_offsets={0: 1, 1: 2})
    assert one.digest() == AskedRange("t", from_offsets={1: 2, 0: 1}).digest()
    others = [
        AskedRange("t", from_offsets={0: 1, 1: 3}),
        AskedRange("t", from_timestamp=5),
        AskedRange("t", to_timestamp=5),
        AskedRange("t", to_timestamp=5, exact_time=True),
        AskedRange("t", from_checkpoint="c", span=QueryBatches(5)),
        AskedRange("t", from_checkpoint="c", span=QueryBatches(5, 5)),
    ]
    assert len({each.digest() for each in (one, *others)}) == len(others) + 1


def test_offsets_must_name_every_partition() -> None:
    bounds = dict.fromkeys((P0, P1, P2), LogBounds(0, 9))
    with pytest.raises(PlanError, match=r"not every partition of topic t: it lacks t-0, t-1; .*-2 is the earliest"):
        check_all_named("t", bounds, {2: 5})
    check_all_named("t", bounds, {0: -2, 1: 4, 2: 5})


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
    told = nothing_to_replay("t", {P0: log}, {P0: start}, from_timestamp)
    assert told.startswith(f"nothing to replay: {said}")
