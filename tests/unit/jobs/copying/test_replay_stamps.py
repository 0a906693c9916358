"""The stamps of a replay: written behind all other headers, and found again in the target."""

import pyarrow as pa

from spark_kafkalite.jobs.copying.replay_stamps import (
    REPLAY_STAMP_NAMES,
    present_in,
    stamped,
    stamped_offsets,
    united,
)

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def batch(offsets: list[int], headers: list[object] | None = None) -> pa.RecordBatch:
    given = [None] * len(offsets) if headers is None else headers
    return pa.RecordBatch.from_arrays(
        [pa.array(offsets, pa.int64()), pa.array(given, HEADERS)], names=["offset", "headers"]
    )


def found(rows: pa.RecordBatch, run_id: str = "run", topic: str = "t") -> dict[int, list[int]]:
    of_run = stamped_offsets(rows.column("headers"), run_id, topic)
    return {partition: offsets.to_pylist() for partition, offsets in of_run.items()}


def test_the_stamp_names_run_and_place_behind_the_record_s_own_headers() -> None:
    rows = stamped(batch([7, 9], [[{"key": "h", "value": b"1"}], None]), "run", "t", 3)
    first, second = ([(each["key"], each["value"]) for each in row] for row in rows.column("headers").to_pylist())
    stamps = [("kafkalite-replay", b"run"), ("kafkalite-replay-topic", b"t"), ("kafkalite-replay-partition", b"3")]
    assert first == [("h", b"1"), *stamps, ("kafkalite-replay-offset", b"7")]
    assert second == [*stamps, ("kafkalite-replay-offset", b"9")]
    assert found(rows) == {3: [7, 9]}


def test_other_records_runs_and_topics_are_passed_over() -> None:
    stamps = [
        {"key": name, "value": value} for name, value in zip(REPLAY_STAMP_NAMES, (None, b"t", b"0", b"1"), strict=True)
    ]
    strange = batch([0, 1, 2, 3], [None, [], [{"key": "h", "value": None}] * 4, stamps])
    assert found(strange) == {}
    rows = stamped(batch([4]), "run", "t", 0)
    assert found(rows, "run2") == found(rows, "run", "t2") == {}
    assert found(rows.slice(0, 0)) == {}


def test_the_last_replay_of_a_record_counts() -> None:
    once = stamped(batch([4, 5]), "first", "t", 0)
    again = stamped(once.set_column(0, "offset", pa.array([40, 50], pa.int64())), "second", "copy", 1)
    assert found(again, "first", "t") == {}
    assert found(again, "second", "copy") == {1: [40, 50]}
    assert found(again.slice(1), "second", "copy") == {1: [50]}


def test_what_is_present_is_put_together_by_partition() -> None:
    batches = [stamped(batch([number]), "run", "t", number % 2) for number in range(60)]
    halves = [present_in(batches[:30], "run", "t"), present_in([*batches[30:], batch([1])], "run", "t")]
    both = united(halves)
    assert {partition: (each.count, each.first_missing(partition)) for partition, each in both.items()} == {
        0: (30, 1), 1: (30, 2),
    }  # fmt: skip
    assert united([]) == {}
