"""The stream reader's decisions, with a cluster that is a dictionary."""

import json
import pickle
import time

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from spark_kafkalite.client.consume.log_samples import LogSample
from spark_kafkalite.client.read_schema import READ_SCHEMA
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.options.positions import AT_EARLIEST, Positions
from spark_kafkalite.spark.reading import trigger_pace
from spark_kafkalite.spark.reading.cluster_offsets import Assigned
from spark_kafkalite.spark.reading.stream_reader import KafkaliteStreamReader
from spark_kafkalite.spark.reading.topic_id import topic_id_text

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ALL = ReadAllAvailable()


class DictionaryCluster:
    """Log starts and ends as the test sets them."""

    def __init__(self, ends, starts=None, topic_id=b"1" * 16) -> None:
        self.ends = dict(ends)
        self.starts = dict(starts or {})
        self.topic_id = topic_id
        self.epochs = {}
        self.asked = self.sampled = 0

    def assigned(self, known=()) -> Assigned:
        return Assigned(tuple(sorted(self.ends)), {tp.topic: self.topic_id for tp in self.ends})

    def earliest(self, partitions):
        return {tp: self.starts.get(tp, 0) for tp in partitions if tp in self.ends}

    def latest(self, partitions, not_below=None):
        self.asked += 1
        return {tp: self.ends[tp] for tp in partitions if tp in self.ends}

    def leader_epochs(self, partitions):
        return {tp: self.epochs[tp] for tp in partitions if tp in self.epochs}

    def samples(self, places):
        """Every record takes 100 bytes."""
        self.sampled += 1
        return {tp: LogSample(place, place + 1, 100) for tp, place in places.items()}

    def resolved(self, spec, partitions, *, starting):
        return self.earliest(partitions) if spec.positions == Positions(AT_EARLIEST) else self.latest(partitions)


def reader_over(cluster, **given) -> KafkaliteStreamReader:
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "earliest", **given}
    reader = KafkaliteStreamReader(reader_options(options), READ_SCHEMA)
    reader._lookup_made = cluster
    return reader


def through_the_log(offset):
    """Return an offset as the engine gives it back after a restart."""
    return json.loads(json.dumps(offset))


def spans(tasks) -> dict[str, tuple[int, int]]:
    return {str(each.topic_partition): (each.start_offset, each.end_offset) for task in tasks for each in task.ranges}


def test_only_the_first_batch_carries_the_initial_offsets():
    cluster = DictionaryCluster({T0: 9}, {T0: 5})
    reader = reader_over(cluster)
    initial = reader.initialOffset()
    assert initial == {"t": {"0": 5}}
    first = reader.latestOffset(initial, ALL)
    assert json.dumps(first) == '{"$initial": {"t": {"0": 5}}, "t": {"0": 9}}'
    assert spans(reader.partitions(initial, first)) == {"t-0": (5, 9)}
    # Nothing new: the very same object, text for text.
    assert reader.latestOffset(first, ALL) is first
    cluster.ends[T0] = 12
    second = reader.latestOffset(first, ALL)
    assert second == {"t": {"0": 12}}
    assert spans(reader.partitions(first, second)) == {"t-0": (9, 12)}


def test_a_batch_starts_in_the_leader_epoch_that_the_one_before_ended_in():
    cluster = DictionaryCluster({T0: 9, T1: 4})
    cluster.epochs = {T0: 3, T1: 3}
    reader = reader_over(cluster)
    initial = reader.initialOffset()
    first = through_the_log(reader.latestOffset(initial, ALL))
    epochs = lambda tasks: {str(r.topic_partition): r.start_epoch for task in tasks for r in task.ranges}  # noqa: E731
    assert epochs(reader.partitions(initial, first)) == {"t-0": -1, "t-1": -1}
    # Partition 0 has a new leader, and nobody asks for an end that is the same.
    cluster.epochs[T0] = 5
    assert reader.latestOffset(first, ALL) == first | {"$initial": initial}
    cluster.ends = {T0: 12, T1: 7}
    second = reader.latestOffset(first, ALL)
    assert epochs(reader.partitions(first, second)) == {"t-0": 3, "t-1": 3}
    # The same batch planned again, as for a task that is repeated.
    assert epochs(reader.partitions(first, second)) == {"t-0": 3, "t-1": 3}
    cluster.ends[T0] = 15
    third = reader.latestOffset(second, ALL)
    assert epochs(reader.partitions(second, third)) == {"t-0": 5}
    # What another process planned: nobody knows.
    assert epochs(reader_over(cluster).partitions(second, third)) == {"t-0": -1}


def test_an_empty_first_batch_pins_latest():
    cluster = DictionaryCluster({T0: 9})
    reader = reader_over(cluster, startingOffsets="latest")
    first = reader.latestOffset(reader.initialOffset(), ALL)
    assert first == {"$initial": {"t": {"0": 9}}, "t": {"0": 9}}
    assert spans(reader.partitions({"t": {"0": 9}}, first)) == {}


def test_a_first_batch_repeated_after_a_failure_loses_nothing():
    cluster = DictionaryCluster({T0: 3})
    reader = reader_over(cluster, startingOffsets="latest")
    initial = reader.initialOffset()
    cluster.ends[T0] = 7
    first = through_the_log(reader.latestOffset(initial, ALL))
    cluster.ends[T0] = 10
    restarted = reader_over(cluster, startingOffsets="latest")
    asked_again = restarted.initialOffset()
    assert asked_again == {"t": {"0": 10}}
    assert spans(restarted.partitions(asked_again, first)) == {"t-0": (3, 7)}
    second = restarted.latestOffset(first, ALL)
    assert second == {"t": {"0": 10}}


def test_a_checkpoint_of_the_jvm_connector_goes_on():
    reader = reader_over(DictionaryCluster({T0: 12}))
    start = through_the_log({"t": {"0": 5}})
    end = reader.latestOffset(start, ALL)
    assert end == {"t": {"0": 12}}
    assert spans(reader.partitions(start, end)) == {"t-0": (5, 12)}


def test_the_limit_and_its_default():
    reader = reader_over(DictionaryCluster({T0: 90, T1: 10}), maxOffsetsPerTrigger="50")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(50)
    initial = reader.initialOffset()
    first = reader.latestOffset(initial, limit)
    assert first["t"] == {"0": 45, "1": 5}
    # Trigger.Once overrules it.
    assert reader_over(DictionaryCluster({T0: 90})).getDefaultReadLimit() == ALL
    assert reader.latestOffset(first, ALL) == {"t": {"0": 90, "1": 10}}


def test_the_limit_by_bytes():
    cluster = DictionaryCluster({T0: 90, T1: 10})
    reader = reader_over(cluster, maxBytesPerTrigger="5000")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(5_000)
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert first["t"] == {"0": 45, "1": 5}
    # Trigger.Once overrules it, and then nothing is measured.
    cluster.sampled = 0
    assert reader.latestOffset(first, ALL) == {"t": {"0": 90, "1": 10}}
    assert cluster.sampled == 0
    # The last batch that an idle query looks for is not measured either.
    last = through_the_log({"t": {"0": 90, "1": 10}})
    assert reader.latestOffset(last, limit) is last
    assert cluster.sampled == 0


@pytest.mark.parametrize(("offsets", "size", "taken"), [("50", "1k", 10), ("5", "1k", 5)])
def test_of_two_limits_the_one_that_is_reached_first_counts(offsets, size, taken):
    reader = reader_over(DictionaryCluster({T0: 90}), maxOffsetsPerTrigger=offsets, maxBytesPerTrigger=size)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(int(offsets))
    assert reader.latestOffset(reader.initialOffset(), limit)["t"] == {"0": taken}


def test_a_batch_that_waited_for_enough_offsets_is_limited_by_bytes():
    cluster = DictionaryCluster({T0: 3})
    reader = reader_over(cluster, minOffsetsPerTrigger="50", maxBytesPerTrigger="1k")
    limit = reader.getDefaultReadLimit()
    first = through_the_log(reader.latestOffset(reader.initialOffset(), limit))
    cluster.ends[T0] = 6
    # The first trigger that is no first batch always fires.
    second = reader.latestOffset(first, limit)
    assert second == {"t": {"0": 6}}
    cluster.ends[T0] = 50
    assert reader.latestOffset(second, limit) is second
    cluster.ends[T0] = 60
    assert reader.latestOffset(second, limit) == {"t": {"0": 16}}


def test_tasks_are_split_by_bytes():
    reader = reader_over(DictionaryCluster({T0: 90, T1: 10}), maxBytesPerPartition="3000", maxRecordsPerPartition="20")
    tasks = reader.partitions({"t": {"0": 0, "1": 0}}, {"t": {"0": 90, "1": 10}})
    assert [str(each) for task in tasks for each in task.ranges] == [
        "t-0[0, 15)",
        "t-0[15, 30)",
        "t-0[30, 45)",
        "t-0[45, 60)",
        "t-0[60, 75)",
        "t-0[75, 90)",
        "t-1[0, 10)",
    ]


def test_available_now_stops_where_it_was_frozen():
    cluster = DictionaryCluster({T0: 10})
    reader = reader_over(cluster)
    reader.prepareForTriggerAvailableNow()
    cluster.ends = {T0: 99, T1: 5}
    first = reader.latestOffset(reader.initialOffset(), ALL)
    # The partition that came in between is not read, and not lost either.
    assert first["t"] == {"0": 10, "1": 0}
    assert spans(reader.partitions({"t": {"0": 0, "1": 0}}, first)) == {"t-0": (0, 10)}
    assert reader.latestOffset(first, ALL) is first


def test_the_option_stops_a_query_where_the_logs_ended_when_it_began():
    cluster = DictionaryCluster({T0: 10})
    reader = reader_over(cluster, availableNow="true")
    initial = reader.initialOffset()
    first = reader.latestOffset(initial, ReadMaxRows(6))
    cluster.ends = {T0: 99}
    last = reader.latestOffset(first, ReadMaxRows(6))
    assert [first["t"], last] == [{"0": 6}, {"t": {"0": 10}}]
    assert reader.latestOffset(last, ReadMaxRows(6)) is last


def test_available_now_goes_on_without_what_was_deleted_meanwhile(caplog):
    cluster = DictionaryCluster({T0: 10, T1: 10})
    reader = reader_over(cluster, failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    start = {"t": {"0": 3, "1": 3}}
    end = reader.latestOffset(start, ReadMaxRows(4))
    assert spans(reader.partitions(start, end)) == {"t-0": (3, 5), "t-1": (3, 5)}
    del cluster.ends[T1]
    last = reader.latestOffset(end, ALL)
    assert last == {"t": {"0": 10}}
    assert spans(reader.partitions(end, last)) == {"t-0": (5, 10)}
    assert "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] failOnDataLoss=false: t-1 are gone" in caplog.text
    assert reader.latestOffset(last, ALL) is last


def available_now(**given):
    """Return a reader within an AvailableNow run over t-0 that reads four offsets a batch, its cluster, its place."""
    cluster = DictionaryCluster({T0: 10})
    reader = reader_over(cluster, **given)
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    reader.partitions({"t": {"0": 0}}, first)
    return reader, cluster, through_the_log(first)


def rest_of(reader, start) -> list[dict[str, tuple[int, int]]]:
    """Run a query to its end and return what its batches read."""
    batches = []
    while (end := reader.latestOffset(start, ReadMaxRows(4))) is not start:
        batches.append(spans(reader.partitions(start, end)))
        start = end
    return batches


@pytest.mark.parametrize("records", [2, 7, 10, 11])
def test_available_now_notices_a_topic_that_was_made_again_during_the_run(records):
    reader, cluster, first = available_now()
    cluster.ends[T0], cluster.topic_id = records, b"2" * 16
    with pytest.raises(SparkConditionError, match=r"\[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED\] .* created again"):
        reader.latestOffset(first, ReadMaxRows(4))
    reader, cluster, first = available_now(failOnDataLoss="false")
    cluster.ends[T0], cluster.topic_id = records, b"2" * 16
    batches = [batch["t-0"] for batch in rest_of(reader, first)]
    assert (batches[0][0], batches[-1][1]) == (0, records)
    assert [end for _, end in batches[:-1]] == [start for start, _ in batches[1:]]


def test_available_now_does_not_wait_for_records_that_a_log_has_no_more(caplog):
    reader, cluster, first = available_now()
    cluster.ends[T0] = 7
    text = "AvailableNow run: t-0 went from 10 to 7"
    with pytest.raises(SparkConditionError, match=rf"\[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED\] .*{text}"):
        reader.latestOffset(first, ReadMaxRows(4))
    reader, cluster, first = available_now(failOnDataLoss="false")
    cluster.ends[T0] = 7
    assert rest_of(reader, first) == [{"t-0": (4, 7)}]
    assert caplog.text.count(text) == 1


def test_available_now_reads_what_no_broker_knew_when_the_run_began():
    cluster = DictionaryCluster({})
    reader = reader_over(cluster)
    reader.prepareForTriggerAvailableNow()
    cluster.ends = {T0: 10}
    start = {"t": {"0": 3}}
    end = reader.latestOffset(start, ALL)
    assert spans(reader.partitions(start, end)) == {"t-0": (3, 10)}


def test_a_topic_that_goes_while_the_start_is_looked_up_is_lost_data(monkeypatch, caplog):
    cluster = DictionaryCluster({T0: 9})
    monkeypatch.setattr(cluster, "assigned", lambda known=(): Assigned((T0, T1), {"t": cluster.topic_id}))
    with pytest.raises(SparkConditionError, match=r"KAFKA_DATA_LOSS.PARTITIONS_DELETED\] .* t-1 disappeared just now"):
        reader_over(cluster).initialOffset()
    assert reader_over(cluster, failOnDataLoss="false").initialOffset() == {"t": {"0": 0}}
    assert "t-1 disappeared just now" in caplog.text


def test_available_now_from_latest_never_goes_backwards():
    cluster = DictionaryCluster({T0: 10})
    reader = reader_over(cluster, startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    cluster.ends[T0] = 15
    initial = reader.initialOffset()
    first = reader.latestOffset(initial, ALL)
    assert first == {"$initial": {"t": {"0": 15}}, "t": {"0": 15}}
    assert reader.partitions(initial, first) == []


def test_new_partitions_are_read_from_their_first_offset():
    cluster = DictionaryCluster({T0: 5})
    reader = reader_over(cluster)
    first = reader.latestOffset(reader.initialOffset(), ALL)
    reader.partitions({"t": {"0": 0}}, first)
    cluster.ends[T1] = 3
    second = reader.latestOffset(first, ALL)
    assert second == {"t": {"0": 5, "1": 3}}
    assert spans(reader.partitions(first, second)) == {"t-1": (0, 3)}


def lose(**given):
    """Return a reader of a query that has read t-0 up to 10, its cluster and where it is."""
    cluster = DictionaryCluster({T0: 10})
    reader = reader_over(cluster, **given)
    first = reader.latestOffset(reader.initialOffset(), ALL)
    reader.partitions({"t": {"0": 0}}, first)
    return reader, cluster, first


@pytest.mark.parametrize(
    ("change", "condition", "cause"),
    [
        (lambda cluster: cluster.ends.clear(), "KAFKA_DATA_LOSS.PARTITIONS_DELETED", "deleted"),
        (
            lambda cluster: (cluster.ends.clear(), cluster.ends.update({T1: 0})),
            "KAFKA_DATA_LOSS.PARTITIONS_DELETED",
            "partitionGone",
        ),
        (lambda cluster: cluster.ends.update({T0: 4}), "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED", "endWentBack"),
        (
            lambda cluster: (cluster.ends.update({T1: 8}), cluster.starts.update({T1: 2})),
            "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
            "agedOut",
        ),
    ],
)
def test_data_loss_is_an_error_unless_it_may_be(change, condition, cause, caplog):
    for given in ({}, {"failOnDataLoss": "false", f"dataLoss.{cause}": "fail"}):
        reader, cluster, first = lose(**given)
        change(cluster)
        end = reader.latestOffset(first, ALL)
        with pytest.raises(SparkConditionError) as caught:
            reader.partitions(first, end)
        assert caught.value.condition == condition
    for name, value in (("failOnDataLoss", "false"), (f"dataLoss.{cause}", "warn")):
        reader, cluster, first = lose(**{name: value})
        change(cluster)
        reader.partitions(first, reader.latestOffset(first, ALL))
        assert f"[{condition}] {name}={value}: " in caplog.text


def test_a_topic_made_again_is_seen_by_its_id_even_when_it_has_grown():
    reader, cluster, first = lose()
    cluster.ends[T0], cluster.topic_id = 25, b"2" * 16
    with pytest.raises(SparkConditionError, match="deleted and created again"):
        reader.latestOffset(first, ALL)


def test_a_topic_made_again_is_read_from_its_beginning_when_loss_is_allowed():
    reader, cluster, first = lose(failOnDataLoss="false")
    cluster.ends[T0], cluster.topic_id = 25, b"2" * 16
    end = reader.latestOffset(first, ALL)
    assert spans(reader.partitions(first, end)) == {"t-0": (0, 25)}
    cluster.ends[T0] = 30
    later = reader.latestOffset(end, ALL)
    assert spans(reader.partitions(end, later)) == {"t-0": (25, 30)}


class CheckpointOfTest:
    """Ids in a checkpoint: what it knows, and what was written at which offset."""

    def __init__(self, **topics) -> None:
        self.topics = {topic: frozenset({topic_id_text(topic_id)}) for topic, topic_id in topics.items()}
        self.asked = []
        self.written = []

    def known(self, position):
        self.asked.append(position)
        return self.topics

    def remember(self, position, ids):
        if not self.written or self.written[-1][1] != ids:
            self.written.append((position, ids))


def restarted(cluster, checkpoint, **given):
    reader = reader_over(cluster, **given)
    reader._topics._checkpoint_made = checkpoint
    return reader


OLD, NEW = b"1" * 16, b"2" * 16


def test_a_new_query_keeps_the_ids_under_which_its_batches_were_planned():
    checkpoint = CheckpointOfTest()
    cluster = DictionaryCluster({T0: 10})
    reader = restarted(cluster, checkpoint, failOnDataLoss="false")
    initial = reader.initialOffset()
    first = reader.latestOffset(initial, ALL)
    assert checkpoint.written == []
    reader.partitions(initial, first)
    assert checkpoint.written == [(first, {"t": topic_id_text(OLD)})]
    assert reader.latestOffset(first, ALL) is first
    # The new id is written with a batch of the new topic, not when it is seen.
    cluster.ends[T0], cluster.topic_id = 25, NEW
    second = reader.latestOffset(first, ALL)
    assert [ids for _, ids in checkpoint.written if ids] == [{"t": topic_id_text(OLD)}]
    reader.partitions(first, second)
    assert checkpoint.written[-1] == (second, {"t": topic_id_text(NEW)})
    assert checkpoint.asked == []


def test_a_restarted_query_finds_a_longer_topic_by_the_id_in_its_checkpoint():
    start = {"t": {"0": 10}}
    checkpoint = CheckpointOfTest(t=OLD)
    with pytest.raises(SparkConditionError, match=r"set failOnDataLoss=false .*may be removed after one batch"):
        restarted(DictionaryCluster({T0: 25}, topic_id=NEW), checkpoint).latestOffset(start, ALL)
    assert (checkpoint.asked, checkpoint.written) == ([start], [])
    reader = restarted(DictionaryCluster({T0: 25}, topic_id=NEW), checkpoint, **{"dataLoss.recreated": "warn"})
    end = reader.latestOffset(start, ALL)
    assert spans(reader.partitions(start, end)) == {"t-0": (0, 25)}
    assert checkpoint.written[-1] == (end, {"t": topic_id_text(NEW)})
    same = restarted(DictionaryCluster({T0: 25}, topic_id=OLD), checkpoint)
    assert spans(same.partitions(start, same.latestOffset(start, ALL))) == {"t-0": (10, 25)}


def test_a_restarted_query_takes_the_topics_as_they_are_where_its_checkpoint_knows_none():
    checkpoint = CheckpointOfTest(another=OLD)
    reader = restarted(DictionaryCluster({T0: 25}, topic_id=NEW), checkpoint)
    start = {"t": {"0": 10}}
    assert spans(reader.partitions(start, reader.latestOffset(start, ALL))) == {"t-0": (10, 25)}
    assert checkpoint.written[-1][1] == {"t": topic_id_text(NEW)}


@pytest.mark.parametrize("initial", [None, {"t": {"0": 0}}], ids=["a later batch", "batch 0"])
def test_a_batch_planned_before_a_restart_is_not_read_from_a_new_topic(initial):
    start, end = {"t": {"0": 0}}, {"t": {"0": 10}}
    if initial is not None:
        end = {"$initial": initial, **end}
    cluster, checkpoint = DictionaryCluster({T0: 25}, topic_id=NEW), CheckpointOfTest(t=OLD)
    for given in ({}, {"failOnDataLoss": "false"}):
        reader = restarted(cluster, checkpoint, **given)
        if initial is not None:
            reader.initialOffset()
        if not given:
            with pytest.raises(SparkConditionError, match="was deleted and created again"):
                reader.partitions(start, end)
    assert spans(reader.partitions(start, end)) == {}
    assert checkpoint.asked[-1] == (start if initial is None else end)
    after = reader.latestOffset(end, ALL)
    assert spans(reader.partitions(end, after)) == {"t-0": (0, 25)}


def test_a_topic_made_again_with_as_many_records_is_read_all_the_same():
    reader, cluster, first = lose(failOnDataLoss="false")
    cluster.topic_id = b"2" * 16
    end = reader.latestOffset(first, ALL)
    assert spans(reader.partitions(first, end)) == {"t-0": (0, 9)}
    last = reader.latestOffset(end, ALL)
    assert spans(reader.partitions(end, last)) == {"t-0": (9, 10)}
    assert reader.latestOffset(last, ALL) is last


def test_a_topic_made_again_while_the_source_waits_for_records_is_read_from_its_beginning(monkeypatch):
    reader, cluster, first = lose(failOnDataLoss="false")
    assert reader.latestOffset(first, ALL) is first

    def made_again(_):
        cluster.ends[T0], cluster.topic_id = 4, b"2" * 16

    monkeypatch.setattr("spark_kafkalite.spark.reading.trigger_pace.time.sleep", made_again)
    assert spans(reader.partitions(first, reader.latestOffset(first, ALL))) == {"t-0": (0, 4)}


def test_a_topic_made_again_between_the_look_at_its_id_and_that_at_its_end_is_read_in_the_end():
    reader, cluster, first = lose(failOnDataLoss="false")
    assert reader.latestOffset(first, ALL) is first
    cluster.ends[T0] = 4  # the id that was looked up just before is the old one's
    end = reader.latestOffset(first, ALL)
    assert reader.partitions(first, end) == []
    cluster.topic_id = b"2" * 16
    next_end = reader.latestOffset(end, ALL)
    assert spans(reader.partitions(end, next_end)) == {"t-0": (0, 3)}
    assert spans(reader.partitions(next_end, reader.latestOffset(next_end, ALL))) == {"t-0": (3, 4)}


def test_a_log_that_was_truncated_is_not_read_again():
    reader, cluster, first = lose(failOnDataLoss="false")
    assert reader.latestOffset(first, ALL) is first  # the id is known by now
    cluster.ends[T0] = 4
    assert reader.partitions(first, reader.latestOffset(first, ALL)) == []


def test_across_a_restart_an_offset_that_went_backwards_means_a_new_topic():
    restarted = reader_over(DictionaryCluster({T0: 4}), failOnDataLoss="false")
    start = {"t": {"0": 10}}
    assert spans(restarted.partitions(start, restarted.latestOffset(start, ALL))) == {"t-0": (0, 4)}


class SimulatedTime:
    """Stands in for the module ``time``: it passes only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_an_idle_source_waits_longer_and_longer_and_keeps_looking(monkeypatch):
    clock = SimulatedTime()
    monkeypatch.setattr(trigger_pace, "time", clock)
    reader, cluster, first = lose()
    calls = 0
    while clock.now_s < 1.0:
        assert reader.latestOffset(first, ALL) is first
        calls += 1
    assert calls <= 15
    assert cluster.asked > calls
    cluster.ends[T0] = 11
    started_s = clock.now_s
    assert reader.latestOffset(first, ALL) == {"t": {"0": 11}}
    assert clock.now_s - started_s < 0.15


def test_the_minimum_waits():
    reader, cluster, first = lose(minOffsetsPerTrigger="5")
    cluster.ends[T0] = 14
    # The first trigger of a run fires; so this one is the second.
    reader._pace._last_trigger_s = time.monotonic()
    assert reader.latestOffset(first, ALL) is first
    cluster.ends[T0] = 15
    assert reader.latestOffset(first, ALL) == {"t": {"0": 15}}


def test_the_longest_delay_ends_the_wait_for_the_minimum(monkeypatch):
    clock = SimulatedTime()
    monkeypatch.setattr(trigger_pace, "time", clock)
    reader, cluster, first = lose(minOffsetsPerTrigger="100", maxTriggerDelay="90s")
    cluster.ends[T0] = 14
    # The first trigger of a run fires; from it on the delay counts.
    second = reader.latestOffset(first, ALL)
    assert second == {"t": {"0": 14}}
    fired_s = clock.now_s
    cluster.ends[T0] = 15
    while reader.latestOffset(second, ALL) is second:
        assert clock.now_s < fired_s + 100
    assert 90 <= clock.now_s - fired_s < 91
    # And so does the first one after a restart.
    restarted = reader_over(DictionaryCluster({T0: 15}), minOffsetsPerTrigger="100")
    assert restarted.latestOffset(through_the_log(second), ALL) == {"t": {"0": 15}}


def test_a_batch_that_waited_for_enough_offsets_is_limited_by_offsets():
    reader, cluster, first = lose(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="7")
    cluster.ends[T0] = 11
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    cluster.ends[T0] = 15
    assert reader.latestOffset(second, reader.getDefaultReadLimit()) is second
    cluster.ends[T0] = 30
    assert reader.latestOffset(second, reader.getDefaultReadLimit()) == {"t": {"0": 18}}


def test_a_reader_is_pickled_without_its_connections():
    reader = reader_over(DictionaryCluster({T0: 1}))
    reader._lookup_made = object()  # cannot be used, and is not taken along
    assert pickle.loads(pickle.dumps(reader))._lookup_made is None


def test_offsets_of_another_source_are_refused():
    with pytest.raises(SparkConditionError, match="another source"):
        reader_over(DictionaryCluster({T0: 1})).latestOffset({"logOffset": 3}, ALL)


def test_the_progress_offset_is_plain():
    reader, _, _ = lose()
    assert reader.reportLatestOffset() == {"t": {"0": 10}}


def test_a_checkpoint_that_overrides_where_to_start_is_told_once_with_both(caplog):
    reader = reader_over(DictionaryCluster({T0: 9}), newPartitionStart="latest")
    at = {"t": {"0": 4}}
    reader.partitions(at, reader.latestOffset(at, ALL))
    reader.latestOffset({"t": {"0": 9}}, ALL)
    (told,) = caplog.messages
    assert told.startswith(
        "startingOffsets=earliest, newPartitionStart=latest: without effect on the partitions of the checkpoint, in "
        "which the query goes on at t-0 offset 4; "
    )


def test_a_new_query_is_told_nothing_of_a_checkpoint(caplog):
    reader = reader_over(DictionaryCluster({T0: 9}))
    initial = reader.initialOffset()
    reader.partitions(initial, reader.latestOffset(initial, ALL))
    assert caplog.messages == []


OTHERS = {"t": {"0": 9}, "u": {"0": 4}}


@pytest.mark.parametrize("given", [{"subscribe": "t"}, {"subscribePattern": "^t"}, {"assign": '{"t":[0]}'}])
def test_a_checkpoint_with_a_topic_that_is_not_named_fails_before_anything_is_planned(given):
    options = {"kafka.bootstrap.servers": "h:1", **given}
    reader = KafkaliteStreamReader(reader_options(options), READ_SCHEMA)
    reader._lookup_made = cluster = DictionaryCluster({T0: 20})
    for call in (lambda: reader.latestOffset(OTHERS, ALL), lambda: reader.partitions(OTHERS, {"t": {"0": 12}})):
        with pytest.raises(SparkConditionError, match=r"PARTITIONS_DELETED.*goes on in u.*dataLoss.unsubscribed=warn"):
            call()
    assert cluster.asked == 0


@pytest.mark.parametrize("given", [{"dataLoss.unsubscribed": "warn"}, {"failOnDataLoss": "false"}])
def test_a_topic_taken_out_on_purpose_is_left_with_one_line(given, caplog):
    reader = reader_over(DictionaryCluster({T0: 20}), **given)
    end = reader.latestOffset(OTHERS, ALL)
    assert end == {"t": {"0": 20}}
    assert spans(reader.partitions(OTHERS, end)) == {"t-0": (9, 20)}
    reader.latestOffset(OTHERS, ALL)
    (line,) = [record.getMessage() for record in caplog.records if "PARTITIONS_DELETED" in record.getMessage()]
    assert "subscribe=t does not name u" in line
    caplog.clear()
    reader.latestOffset(end, ALL)
    assert not caplog.records


def test_a_batch_that_was_planned_with_a_topic_since_taken_out_is_read_whole():
    reader = reader_over(DictionaryCluster({T0: 20}), **{"dataLoss.unsubscribed": "warn"})
    end = {"t": {"0": 12}, "u": {"0": 7}}
    assert spans(reader.partitions(OTHERS, end)) == {"t-0": (9, 12), "u-0": (4, 7)}


def test_the_checkpoint_of_another_query_is_not_taken_for_lost_records(caplog):
    orders = {"orders": {"0": 1000}}
    with pytest.raises(SparkConditionError, match=r"subscribe=t: the checkpoint is of orders.*checkpointLocation"):
        reader_over(DictionaryCluster({T0: 20}), failOnDataLoss="false").latestOffset(orders, ALL)
    reader = reader_over(DictionaryCluster({T0: 20}), **{"dataLoss.unsubscribed": "warn"})
    end = reader.latestOffset(orders, ALL)
    assert spans(reader.partitions(orders, end)) == {"t-0": (0, 20)}
    assert "begins with what it names" in caplog.text
