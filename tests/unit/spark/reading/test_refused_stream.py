"""A stream that cannot begin: why is told by the first call that the engine makes, and not before."""

import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.source import KafkaliteDataSource

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "endingOffsets": "latest"}


@pytest.mark.parametrize(
    "call",
    [
        lambda reader: reader.initialOffset(),
        lambda reader: reader.latestOffset({}, ReadAllAvailable()),
        lambda reader: reader.partitions({}, {}),
        lambda reader: reader.read(None),
    ],
    ids=["initialOffset", "latestOffset", "partitions", "read"],
)
def test_each_call_says_why(call):
    made = KafkaliteDataSource(OPTIONS).streamReader(StructType([StructField("value", BinaryType())]))
    reader = pickle.loads(pickle.dumps(made))
    assert isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)
    with pytest.raises(
        SparkConditionError, match=r"KAFKALITE_INVALID_OPTION. endingOffsets=latest: a stream has no end"
    ):
        call(reader)
    # The engine stops what it could not use.
    reader.stop()
