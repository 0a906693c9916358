"""What a replay by time reports of records that are not in the order of their timestamps."""

from itertools import pairwise

import pytest

from spark_kafkalite.jobs.copying.time_counts import COUNTED_BYTES, PIECES, pieces_of, scaled
from spark_kafkalite.jobs.copying.time_order import TimeCounts, TimeOrder
from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.reading.offset_ranges import OffsetRange
from spark_kafkalite.spark.reading.range_bytes import RangeBytes

P0, P1 = (TopicPartition("t", number) for number in range(2))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (
            TimeOrder(TimeCounts(6_000, 100), TimeCounts(500, 9_000), exact=False),
            "100 of these 6100 records are outside of the time range, and 500 records of the range lie behind "
            "them; see --exact-time",
        ),
        (
            TimeOrder(TimeCounts(6_000, 0), TimeCounts(500, 9_000, counted=False), exact=False),
            "about 500 records of the range lie behind these offsets; see --exact-time",
        ),
        (
            TimeOrder(TimeCounts(60, 40, counted=False), None, exact=False),
            "about 40 of these about 100 records are outside of the time range; see --exact-time",
        ),
        (TimeOrder(TimeCounts(6, 0), TimeCounts(), exact=False), "no record out of time order is in the log"),
        (TimeOrder(TimeCounts(6, 0, False), None, exact=False), "no record out of time order was found in samples"),
        (TimeOrder(TimeCounts(65, 35), None, exact=True), "65 of these 100 records are in the time range"),
    ],
)
def test_the_sentence_has_the_numbers(order: TimeOrder, said: str) -> None:
    assert order.sentence().startswith(said)
    assert TimeOrder.of(order.document()).sentence() == order.sentence()
    assert order.differs == bool(order.planned.outside or order.missed)


def test_a_large_log_is_read_in_pieces_of_all_its_parts() -> None:
    wholes = {P0: OffsetRange(P0, 100, 4_000_100), P1: OffsetRange(P1, 0, 3)}
    sizes = {P0: RangeBytes(100, 4_000_100, [(100, 1_000.0)]), P1: RangeBytes(0, 3, [(0, 1_000.0)])}
    pieces = list(pieces_of(wholes.values(), sizes))
    of_first = [each for each in pieces if each.topic_partition == P0]
    assert (len(of_first), len(pieces)) == (PIECES, PIECES + 1)
    assert of_first[0].start_offset == 100 and of_first[-1].end_offset <= 4_000_100
    assert all(one.end_offset <= other.start_offset for one, other in pairwise(of_first))
    read_bytes = 1_000 * sum(each.size for each in pieces)
    assert 0.9 * COUNTED_BYTES < read_bytes <= COUNTED_BYTES + 1_000
    assert pieces[-1] == OffsetRange(P1, 0, 1)


def test_counts_of_pieces_stand_for_their_partition() -> None:
    wholes = {P0: OffsetRange(P0, 0, 1_000), P1: OffsetRange(P1, 0, 10)}
    found = scaled(wholes, {P0: [5, 15, 20], P1: [10, 0, 10]}, counted=False)
    assert found == TimeCounts(260, 750, counted=False)
