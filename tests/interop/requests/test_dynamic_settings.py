"""Which settings a running broker takes: those that Apache Kafka calls dynamic, but for what the page says."""

from __future__ import annotations

import re

import pytest

from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.dynamic_config import is_dynamic
from tests.paths import PROJECT
from tests.pool.parts import SharedJavaTools

pytestmark = [pytest.mark.kafka]


def test_what_kafka_calls_dynamic_is_dynamic_or_named_by_the_page(java_tools: SharedJavaTools) -> None:
    # Its main function prints Kafka's own page of broker settings.
    page = java_tools.run("kafka.server.KafkaConfig").stdout
    modes = dict(re.findall(r'(?s)<h4><a id="([^"]+)">.*?Update Mode:</th><td>([\w-]+)', page))
    ours = [each.name for each in BROKER_SETTINGS if modes.get(each.name, "read-only") != "read-only"]
    assert len(ours) > 40
    (said,) = re.findall(r"(?s)exceptions, which need a restart: (.*?)\.\n?\s", _page_text())
    names = re.findall(r"`([\w.]+)`", said)
    assert {name for name in ours if not is_dynamic(name)} == {
        name for name in ours if any(name == each or (each.endswith(".") and name.startswith(each)) for each in names)
    }


def _page_text() -> str:
    return (PROJECT / "docs" / "configuration.md").read_text(encoding="utf-8")
