"""The programs of docs/spark.md: their text, and a place with topics and files of its own to run one in."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.patience import PATIENCE_S

from .topics import Topics

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.md"
STATIC_SIDE = "A topic as the static side of a join"
_SECTIONS = ("Ten programs", STATIC_SIDE, "Writes that may be repeated")
# The topics that programs name, as they stand in their text: at the beginning of a string.
_TOPICS = "clicks|enriched|once|orders|products|sales|sold|spenders|stamped|totals|visits"
_TOPIC_IN_TEXT = re.compile(rf"""(?<=")({_TOPICS})(?=["-])""")

_ORDERS = (
    (1, "ann", "tea", 4.0, "10:00"),
    (2, "bob", "cup", 7.5, "10:02"),
    (3, "ann", "cup", 7.5, "10:07"),
    (2, "bob", "cup", 7.5, "10:02"),
    # So much later that windows and sessions before it end.
    (4, "cyd", "tea", 4.0, "12:00"),
)
_CLICKS = (("ann", "/tea", "09:58"), ("bob", "/cup", "10:01"), ("ann", "/cup", "10:05"), ("cyd", "/tea", "11:59"))


def blocks() -> dict[str, list[str]]:
    """Return the Python blocks of the page's sections about programs, by the heading that they stand under."""
    found: dict[str, list[str]] = {}
    section = heading = ""
    for part in re.split(r"^(#{2,3} [^\n]*|```python\n.*?^```)$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL):
        if part.startswith("#"):
            heading = part.lstrip("# ")
            section = heading if part.startswith("## ") else section
        elif part.startswith("```python") and section in _SECTIONS:
            found.setdefault(heading, []).append(part.removeprefix("```python\n").removesuffix("```"))
    return found


@dataclass
class Shop:
    """One run of one program. ``source`` is the format that it reads and writes with."""

    spark: SparkSession
    topics: Topics
    prefix: str
    base: Path
    source: str

    def __post_init__(self) -> None:
        for name in _TOPICS.split("|"):
            self.topics.admin.create_topic(f"{self.prefix}-{name}", 2 if name in ("orders", "clicks") else 1)
        for product in ("tea", "cup"):
            self.topics.admin.create_topic(f"{self.prefix}-orders-{product}", 1)
        for order in _ORDERS:
            self.order(*order)
        for customer, page, time in _CLICKS:
            self._send("clicks", {"customer": customer, "page": page, "time": f"2026-01-01T{time}:00Z"}, customer)
        self.topics.producer.flush(PATIENCE_S)

    def order(self, number: int, customer: str, product: str, amount: float, time: str) -> None:
        at = f"2026-01-01T{time}:00Z"
        self._send(
            "orders", {"id": number, "customer": customer, "product": product, "amount": amount, "time": at}, customer
        )

    def _send(self, topic: str, value: dict[str, Any], key: str) -> None:
        self.topics.producer.send(f"{self.prefix}-{topic}", json.dumps(value).encode(), key.encode())

    def run(self, *texts: str) -> None:
        """Run pieces of the page one after the other, with the addresses, topics and paths of this test."""
        here: dict[str, Any] = {"spark": self.spark, "__name__": "__main__"}
        for text in (blocks()["Ten programs"][0], *texts):
            changed = _TOPIC_IN_TEXT.sub(rf"{self.prefix}-\1", text)
            for old, new in (
                ('"127.0.0.1:9092"', repr(self.topics.bootstrap)),
                ('"/data/shop"', repr(str(self.base))),
                ('format("kafkalite")', f'format("{self.source}")'),
            ):
                changed = changed.replace(old, new)
            exec(compile(changed, PAGE.name, "exec"), here)

    def written(self, topic: str) -> list[Any]:
        """Return the values of a topic as JSON, sorted by their text."""
        return sorted(map(json.loads, self.topics.values(f"{self.prefix}-{topic}")), key=str)

    def files(self, path: str) -> list[tuple[Any, ...]]:
        """Return the rows of a directory with Parquet files, sorted."""
        return sorted(tuple(row) for row in self.spark.read.parquet(str(self.base / path)).collect())
