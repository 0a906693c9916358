import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafkalite.model import TopicPartition
from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.reading.offset_json import from_json, to_json

T0, T1 = (TopicPartition("t", number) for number in range(2))

offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b.c", "Z"]), st.integers(0, 20)),
    st.integers(0, 2**62),
    max_size=12,
)


def test_the_first_batch_carries_the_initial_offsets_in_the_fixed_form():
    text = json.dumps(to_json({T0: 9}, initial={T0: 5}), separators=(",", ":"))
    assert text == '{"$initial":{"t":{"0":5}},"t":{"0":9}}'


def test_later_offsets_are_the_jvm_connectors():
    assert json.dumps(to_json({T1: 2, T0: 1}), separators=(",", ":")) == '{"t":{"0":1,"1":2}}'


@given(offsets, st.none() | offsets)
def test_json_keys_are_sorted_and_come_back(found, initial):
    stored = to_json(found, initial)
    assert json.dumps(stored) == json.dumps(stored, sort_keys=True)
    assert from_json(json.loads(json.dumps(stored))) == (found, initial)


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        {"t": 5},
        {"t": "earliest"},  # what the option takes is no offset
        {"t": {"x": 5}},
        {"t": {"0": "5"}},
        {"$initial": 5},
        {"logOffset": 3},
    ],
)
def test_offsets_of_other_sources_are_refused(stored):
    with pytest.raises(SparkConditionError, match="KAFKALITE_INVALID_OFFSET"):
        from_json(stored)
