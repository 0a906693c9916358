"""What differs on PySpark 4.0 and 4.1, where alone this is collected; see conftest. docs/spark.md has it as a table."""

import subprocess

import pyspark
import pytest

from tests.paths import PROJECT

from .topics import await_end, last_line, logged_offsets
from .versions_app import copy

pytestmark = [pytest.mark.spark, pytest.mark.versions]

NEWEST = PROJECT / ".venv" / "bin" / "python"
WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
ONE_BATCH = f"option maxOffsetsPerTrigger: on PySpark {pyspark.__version__} a run with Trigger.AvailableNow"


def test_a_checkpoint_moves_to_the_newest_pyspark_and_back(topics, spark, checkpoint):
    if not NEWEST.exists():
        pytest.skip(f"{NEWEST} is missing: make setup")
    source, target = topics.new(2), topics.new()
    given = (topics.bootstrap, source, target, checkpoint)

    def on_newest():
        command = [str(NEWEST), "-m", "tests.spark.versions_app", *given]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() != [pyspark.__version__]

    for first, run in ((0, lambda: copy(spark, *given)), (5, on_newest), (10, lambda: copy(spark, *given))):
        topics.fill(source, range(first, first + 4), 0)
        topics.fill(source, [first + 4], 1)
        run()
        assert sorted(map(int, topics.values(target))) == list(range(first + 5))
    assert len(logged_offsets(checkpoint)) == 9


def test_a_run_with_a_limit_is_one_batch_of_available_now_and_is_warned_of(topics, checkpoint, driver_stderr):
    topic = topics.new()
    topics.fill(topic, range(5))
    stream = topics.stream(topic, maxOffsetsPerTrigger=2)
    for values in (["0", "1"], ["2", "3"], ["4"], []):
        assert topics.run(stream, checkpoint, availableNow=True) == values
    assert any(f"[subscribe={topic}] {ONE_BATCH}" in line for line in driver_stderr.read_text().splitlines())


def test_the_option_ends_a_run_of_all_batches_where_the_logs_ended(topics, checkpoint, driver_stderr):
    topic = topics.new()
    topics.fill(topic, range(5))
    stream = topics.stream(topic, maxOffsetsPerTrigger=2, availableNow="true")

    def more(batch_id, rows):
        # It would go on for ever if it read what comes while it runs.
        topics.fill(topic, [10 + batch_id, 20 + batch_id])

    query, values = topics.collect(stream, checkpoint, {"processingTime": "0 seconds"}, each=more)
    query.processAllAvailable()
    query.stop()
    assert values == ["0", "1", "2", "3", "4"]
    assert ONE_BATCH not in "".join(line for line in driver_stderr.read_text().splitlines() if topic in line)
    # The next run begins there.
    assert topics.run(topics.stream(topic), checkpoint) == ["10", "11", "12", "20", "21", "22"]


def test_sparks_wrapper_around_available_now_is_refused(topics, spark, checkpoint, request):
    topic = topics.new()
    topics.fill(topic, range(3))
    stream = topics.stream(topic)
    assert topics.run(stream, checkpoint) == ["0", "1", "2"]
    spark.conf.set(WRAPPER, "true")
    request.addfinalizer(lambda: spark.conf.unset(WRAPPER))
    query, values = topics.collect(stream, checkpoint, {"availableNow": True})
    with pytest.raises(Exception, match="KAFKALITE_INVALID_OPTION") as caught:
        await_end(query)
    assert last_line(caught.value).endswith("leave it at false")
    assert values == []
