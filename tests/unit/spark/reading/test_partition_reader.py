import pickle
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import InputPartition

from spark_kafkalite.client.consume.range_fetcher import RangeNotInLog
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.errors import LogTruncated
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading import partition_reader
from spark_kafkalite.spark.reading.data_loss import LossCause
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from spark_kafkalite.spark.reading.partition_reader import _after_loss, read_task
from spark_kafkalite.spark.reading.read_plan import ReadPlan, ReadTask
from tests.lab.batches import make_batch
from tests.lab.model_broker import ModelBroker

T0 = TopicPartition("t", 0)
WHOLE = OffsetRange(T0, 10, 20)


AGED_OUT, DELETED, END_WENT_BACK = LossCause.AGED_OUT, LossCause.DELETED, LossCause.END_WENT_BACK


def plan(fail: str = "false", bootstrap: str = "h:1", **more: str) -> ReadPlan:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t", "failOnDataLoss": fail, **more}
    return ReadPlan.of(reader_options(options), READ_SCHEMA)


def plans_by(cause: LossCause) -> tuple[ReadPlan, ReadPlan]:
    """Return a plan in which this cause alone fails, and one in which this cause alone does not."""
    return plan("false", **{cause.option: "fail"}), plan("true", **{cause.option: "warn"})


@pytest.mark.parametrize(
    ("lost_at", "log", "resume", "skipped", "cause"),
    [
        (10, (15, 30), 15, 5, AGED_OUT),  # retention took the beginning
        (12, (15, 30), 15, 3, AGED_OUT),  # and did while the range was read
        (10, (20, 30), 20, 10, AGED_OUT),  # nothing of the range is left
        (10, (25, 30), 20, 10, AGED_OUT),
        (10, (0, 5), 20, 10, END_WENT_BACK),  # the log ends before the range: truncated, or of a new topic
        (10, (0, 9), 20, 10, END_WENT_BACK),
        (10, (-1, -1), 20, 10, DELETED),  # the brokers do not know the topic
        (12, (5, 30), 12, 0, AGED_OUT),  # it is there again: read on
    ],
)
def test_where_reading_goes_on_after_lost_offsets(caplog, lost_at, log, resume, skipped, cause):
    lost = RangeNotInLog(T0, lost_at, *log)
    assert _after_loss(plan(), WHOLE, lost) == resume
    assert f"{skipped} offsets are skipped" in caplog.text
    assert "t-0[10, 20)" in caplog.text
    fails, warns = plans_by(cause)
    assert _after_loss(warns, WHOLE, lost) == resume
    with pytest.raises(SparkConditionError, match=f"{cause.option}=fail: .*{skipped} offsets are skipped"):
        _after_loss(fails, WHOLE, lost)


def test_lost_offsets_are_an_error_by_default():
    with pytest.raises(SparkConditionError, match=r"KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE") as caught:
        _after_loss(plan("true"), WHOLE, RangeNotInLog(T0, 10, 15, 30))
    assert "offset 10 is not in the log, which holds [15, 30); 5 offsets are skipped" in str(caught.value)


def test_a_log_that_was_cut_while_it_was_read_names_both_offsets(caplog):
    cut = LogTruncated(T0, 15, 12, 3)
    fails, warns = plans_by(END_WENT_BACK)
    for lenient in (plan(), warns):
        caplog.clear()
        assert _after_loss(lenient, WHOLE, cut) == 15
        assert "t-0[10, 20): the log was truncated to offset 12 while it was read up to offset 15" in caplog.text
    for strict in (plan("true"), fails):
        with pytest.raises(SparkConditionError, match=r"KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE.* 12 .* 15"):
            _after_loss(strict, WHOLE, cut)


@pytest.fixture
def broker(monkeypatch) -> Iterator[ModelBroker]:
    """A broker with 12 records, for tasks in this process."""
    made = ModelBroker({"t": 1})
    made.listen()
    for _ in range(6):
        made.append(T0, make_batch(2))
    clusters: list[ClusterClient] = []

    def cluster_for(config, settings) -> ClusterClient:
        clusters.append(ClusterClient(config))
        return clusters[-1]

    monkeypatch.setattr(partition_reader, "cluster_for", cluster_for)
    # It changes how this process handles memory, for good.
    monkeypatch.setattr(partition_reader, "settle_worker", lambda: None)
    yield made
    for cluster in clusters:
        cluster.close()
    made.close()


@pytest.mark.parametrize(
    ("log_start", "asked", "left", "cause"),
    [(6, (2, 12), range(6, 12), AGED_OUT), (0, (20, 30), (), END_WENT_BACK)],
    ids=["aged out", "end went back"],
)
def test_a_task_obeys_the_option_of_the_cause_of_its_loss(caplog, broker, log_start, asked, left, cause):
    broker.delete_before(T0, log_start)
    bootstrap = ":".join(map(str, broker.address))
    task = ReadTask((OffsetRange(T0, *asked),))
    warns = plan("true", bootstrap, **{cause.option: "warn"})
    offsets = [offset for batch in read_task(warns, task) for offset in batch.column("offset").to_pylist()]
    assert offsets == list(left)
    assert f"{cause.option}=warn: t-0[{asked[0]}, {asked[1]})" in caplog.text
    fails = plan("false", bootstrap, **{cause.option: "fail"})
    with pytest.raises(SparkConditionError, match=f"{cause.option}=fail: t-0"):
        list(read_task(fails, task))


def test_no_ranges_connect_to_nothing():
    assert list(read_task(plan(), ReadTask(()))) == []
    assert list(read_task(plan(), InputPartition(None))) == []


def test_plan_and_task_are_pickled():
    task = pickle.loads(pickle.dumps(ReadTask((WHOLE,))))
    assert task.ranges == (WHOLE,)
    assert pickle.loads(pickle.dumps(plan())) == plan()
