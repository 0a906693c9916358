"""What a schema registry's serializers put before a value, taken off by Spark's own functions."""

from __future__ import annotations

import itertools
import random
import struct
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.functions import split_registry_frame
from tests.seeds import SEED, SOAK

LARGEST = 2**31 - 1


def header(schema_id: int, magic: int = 0) -> bytes:
    return struct.pack(">bi", magic, schema_id)


def varint(number: int) -> bytes:
    """A number as Protobuf writes an sint32."""
    unsigned = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while unsigned > 127:
        out.append(unsigned & 127 | 128)
        unsigned >>= 7
    return bytes(out) + bytes([unsigned])


def indexes(*numbers: int) -> bytes:
    return varint(len(numbers)) + b"".join(map(varint, numbers))


def split(spark: SparkSession, values: list[bytes | None], format: Any) -> list[Any]:
    """Return a tuple for each value, None for null."""
    data = spark.createDataFrame([(number, each) for number, each in enumerate(values)], "n int, value binary")
    rows = data.select("n", split_registry_frame("value", format).alias("framed")).orderBy("n").collect()
    found = [None if row.framed is None else tuple(row.framed.asDict().values()) for row in rows]
    return [each and (*each[:-1], bytes(each[-1])) for each in found]


@pytest.mark.parametrize("format", ["avro", "json"])
def test_the_header_of_avro_and_json(spark: SparkSession, format: str) -> None:
    values = [header(7) + b"abc", header(LARGEST) + b"\0", header(1), header(-2) + b"x", header(258) + bytes(300)]
    expected = [(7, b"abc"), (LARGEST, b"\0"), (1, b""), (-2, b"x"), (258, bytes(300))]
    not_framed = [None, b"", b"\0\0\0\1", header(7, magic=1) + b"abc", b'{"a":1}']
    assert split(spark, [*values, *not_framed], format) == [*expected, *[None] * len(not_framed)]


WHOLE = [
    (b"\0", [0]),
    (indexes(0), [0]),
    (indexes(1), [1]),
    (indexes(1, 0), [1, 0]),
    (indexes(2, 64, 300), [2, 64, 300]),
    (indexes(*range(20)), list(range(20))),
    (indexes(LARGEST), [LARGEST]),
]


def damaged() -> list[bytes | None]:
    whole = indexes(2, 64, 300)
    cut = [header(9) + whole[:size] for size in range(len(whole))]
    broken = [header(9) + varint(-1) + b"x", header(9) + b"\xff" * 20, header(9) + varint(LARGEST) + b"\2" * 200]
    broken += [header(9) + varint(1 << 33) + b"\2" * 9, header(9) + indexes(1 << 33), header(9) + indexes(2, -1 << 33)]
    return [*cut, *broken, None, header(9, magic=2) + b"\0x", b"\0\0"]


def drawn() -> list[tuple[int, list[int], bytes]]:
    chance = random.Random(SEED)
    return [
        (
            chance.randrange(LARGEST),
            [chance.choice([0, 1, 63, 64, 8191, 8192, chance.randrange(1 << 20)]) for _ in range(chance.randint(1, 9))],
            chance.randbytes(chance.randrange(20)),
        )
        for _ in range(500 if SOAK else 200)
    ]


@pytest.fixture(scope="module")
def of_protobuf(spark: SparkSession) -> dict[str, list[Any]]:
    """What is found in the values of three tests, in one query: Spark takes seconds to compile it."""
    values: dict[str, list[bytes | None]] = {
        "whole": [*(header(9) + each + b"payload" for each, _ in WHOLE), header(9) + b"\0"],
        "damaged": damaged(),
        "drawn": [header(number) + indexes(*found) + payload for number, found, payload in drawn()],
    }
    found = iter(split(spark, [each for some in values.values() for each in some], "protobuf"))
    return {name: list(itertools.islice(found, len(some))) for name, some in values.items()}


@pytest.mark.versions
def test_the_message_indexes_of_protobuf(of_protobuf: dict[str, list[Any]]) -> None:
    assert of_protobuf["whole"] == [*((9, found, b"payload") for _, found in WHOLE), (9, [0], b"")]


def test_indexes_that_are_cut_off_or_damaged_are_null(of_protobuf: dict[str, list[Any]]) -> None:
    assert of_protobuf["damaged"] == [None] * len(damaged())


def test_random_indexes(of_protobuf: dict[str, list[Any]]) -> None:
    assert of_protobuf["drawn"] == drawn(), f"KAFKALITE_SEED={SEED}"


def test_a_format_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="format=thrift: not one of avro, json, protobuf"):
        split_registry_frame("value", "thrift")  # type: ignore[arg-type]
