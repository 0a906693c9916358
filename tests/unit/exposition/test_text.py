"""The text of a scrape, read by Prometheus' own parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from spark_kafkalite.exposition.text import LabelBlock, Page, labels


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_any_label_value_comes_back(value: str) -> None:
    page = Page(10)
    page.family("some_gauge", "gauge", "A value.")
    page.add("some_gauge", labels(group=value), 1)
    (family,) = text_string_to_metric_families(page.text())
    (sample,) = family.samples
    assert sample.labels == {"group": value} and sample.value == 1


def test_series_beyond_the_limit_are_counted() -> None:
    page = Page(3)
    page.family("some_gauge", "gauge", "A value.")
    for number in range(5):
        page.add("some_gauge", labels(number=number), number)
    page.one("dropped", "gauge", "Dropped.", page.dropped)
    found = {family.name: family.samples for family in text_string_to_metric_families(page.text())}
    assert len(found["some_gauge"]) == 3
    assert found["dropped"][0].value == 2


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=6), st.integers(0, 8))
def test_a_block_writes_what_single_series_are(values: list[str], limit: int) -> None:
    blocks, singles = Page(limit), Page(limit)
    block = LabelBlock(labels(group=value) for value in values)
    for name in ("first_gauge", "second_gauge"):
        blocks.extend_block(name, block, list(range(len(values))))
        for number, value in enumerate(values):
            singles.add(name, labels(group=value), number)
    assert (blocks.text(), blocks.series, blocks.dropped) == (singles.text(), singles.series, singles.dropped)


def test_a_histogram_is_cumulated() -> None:
    page = Page(100)
    page.family("seconds", "histogram", "Durations.")
    page.histogram("seconds", {"api": "Fetch"}, [(0.5, 2), (1.0, 0), (float("inf"), 3)], 7.25)
    (family,) = text_string_to_metric_families(page.text())
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    assert found == {
        ("seconds_bucket", "0.5"): 2,
        ("seconds_bucket", "1.0"): 2,
        ("seconds_bucket", "+Inf"): 5,
        ("seconds_sum", None): 7.25,
        ("seconds_count", None): 5,
    }
