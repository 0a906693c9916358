"""The programs of docs/spark.md do what the page says, on our broker; with KAFKALITE_SOAK=1 also on Apache Kafka, under
both formats: every way gives what stands here."""

import itertools
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.seeds import SOAK

from .conftest import HAS_JVM_CONNECTOR
from .programs import STATIC_SIDE, Shop, blocks
from .test_stamps import forget_last_commit
from .topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.any_spark, pytest.mark.timeout(600)]

_COUNTER = itertools.count()
# Installed apart: see requirements-pandas.txt.
_PANDAS = Path(sys.prefix) / "pandas"

_WAYS = [("kafkalite", "broker")]
if SOAK:
    _WAYS.append(("kafkalite", "apache_kafka"))
    if HAS_JVM_CONNECTOR:
        _WAYS.append(("kafka", "apache_kafka"))


@pytest.fixture(
    params=[
        pytest.param(way, marks=pytest.mark.kafka if way[1] == "apache_kafka" else (), id="-".join(way))
        for way in _WAYS
    ]
)
def shop(request, spark, tmp_path):
    source, server = request.param
    bootstrap = request.getfixturevalue(server).bootstrap
    with Topics(bootstrap, spark, f"shop{next(_COUNTER)}") as topics:
        yield Shop(spark, topics, f"shop{next(_COUNTER)}", tmp_path, source)


def program(number):
    """The text of the program with this number."""
    [text] = [pieces for heading, pieces in blocks().items() if heading.startswith(f"{number}. ")]
    return "".join(text)


def test_the_page_has_ten_programs():
    assert [heading.split(". ")[0] for heading in blocks() if heading[0].isdigit()] == [str(n) for n in range(1, 11)]
    assert len(blocks()["Writes that may be repeated"]) == 2


def test_enriched(shop, spark):
    spark.createDataFrame([("tea", "drinks")], "product string, category string").write.parquet(
        str(shop.base / "products")
    )
    shop.run(program(1))
    # A row without a match has no category; JSON leaves nulls out.
    assert [(each["id"], each.get("category")) for each in shop.written("enriched")] == [
        (2, None), (2, None), (3, None), (1, "drinks"), (4, "drinks")
    ]  # fmt: skip


def test_windows(shop):
    shop.run(program(2))
    day = "2026-01-01T"
    assert shop.written("sales") == [
        {"start": f"{day}10:00:00.000Z", "product": "cup", "amount": 15.0},
        {"start": f"{day}10:00:00.000Z", "product": "tea", "amount": 4.0},
        {"start": f"{day}10:05:00.000Z", "product": "cup", "amount": 7.5},
    ]


def test_joined_streams(shop):
    shop.run(program(3))
    assert [(each["id"], each["page"]) for each in shop.written("sold")] == [
        (1, "/tea"), (2, "/cup"), (2, "/cup"), (3, "/cup"), (3, "/tea"), (4, "/tea")
    ]  # fmt: skip


def test_duplicates_dropped(shop):
    shop.run(program(4))
    assert sorted(each["id"] for each in shop.written("once")) == [1, 2, 3, 4]


def test_routed(shop):
    shop.run(program(5))
    routed = {topic: [each["id"] for each in shop.written(f"orders-{topic}")] for topic in ("tea", "cup")}
    assert routed == {"tea": [1, 4], "cup": [2, 2, 3]}


def test_sessions(shop):
    shop.run(program(6))
    assert shop.written("visits") == [
        {"customer": "ann", "start": "2026-01-01T09:58:00.000Z", "pages": 2},
        {"customer": "bob", "start": "2026-01-01T10:01:00.000Z", "pages": 1},
    ]


def test_state_of_its_own(shop, spark, monkeypatch):
    if not _PANDAS.is_dir():
        pytest.skip(f"{_PANDAS} is missing: make setup-pandas")
    # Only the driver's check and the workers of this query find it.
    monkeypatch.syspath_prepend(_PANDAS)
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(_PANDAS))
    try:
        shop.run(program(7))
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert shop.written("spenders") == [{"customer": "ann", "total": 11.5}, {"customer": "bob", "total": 15.0}]


def test_update_mode(shop):
    shop.run(program(8))
    assert shop.written("totals") == [{"product": "cup", "amount": 22.5}, {"product": "tea", "amount": 8.0}]


def test_since_the_last_run(shop):
    shop.run(program(9))
    shop.order(5, "ann", "tea", 4.0, "12:30")
    shop.topics.producer.flush(PATIENCE_S)
    shop.run(program(9))
    assert shop.files("report/run=0") == [("cup", 22.5), ("tea", 8.0)]
    assert shop.files("report/run=1") == [("tea", 4.0)]
    # As after a failure: repeated, and nothing is there twice.
    forget_last_commit(shop.base / "checkpoints" / "report")
    shop.run(program(9))
    assert shop.files("report/run=1") == [("tea", 4.0)]


def test_exactly_once_into_files(shop):
    shop.run(program(10))
    forget_last_commit(shop.base / "checkpoints" / "files")
    shop.order(5, "ann", "tea", 4.0, "12:30")
    shop.topics.producer.flush(PATIENCE_S)
    shop.run(program(10))
    assert [row[0] for row in shop.files("orders")] == [1, 2, 2, 3, 4, 5]


def test_a_topic_as_the_static_side(shop):
    if shop.source != "kafkalite":
        pytest.skip("latest() reads with kafkalite")
    products = f"{shop.prefix}-products"
    shop.topics.fill(products, ["old"], key=b"tea")
    shop.topics.fill(products, ["drinks"], key=b"tea")
    [text] = blocks()[STATIC_SIDE]
    shop.run(text)
    shop.topics.fill(products, ["dishes"], key=b"cup")
    shop.order(5, "ann", "cup", 4.0, "12:30")
    shop.topics.producer.flush(PATIENCE_S)
    shop.run(text)
    found = sorted((row.id, row.category) for row in shop.spark.read.parquet(str(shop.base / "enriched")).collect())
    assert [row for row in found if row[0] in (1, 4)] == [(1, "drinks"), (4, "drinks")]
    assert [row for row in found if row[0] not in (1, 4)] == [(2, None), (2, None), (3, None), (5, "dishes")]


def test_effectively_once(shop):
    if shop.source != "kafkalite":
        pytest.skip('format("kafka") has no stampHeaders')
    stamp, read = blocks()["Writes that may be repeated"]
    shop.run(stamp)
    forget_last_commit(shop.base / "checkpoints" / "stamping")
    shop.run(stamp)
    # Others may write into the topic too, with headers and without.
    for headers in ([("h", b"1")], []):
        shop.topics.producer.send(f"{shop.prefix}-stamped", b"{}", headers=headers)
    shop.topics.producer.flush(PATIENCE_S)
    assert len(shop.written("stamped")) == 12
    shop.run(read)
    assert len(shop.files("each_once")) == 7
