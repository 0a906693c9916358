"""Rebalance storms over clients of all kinds: nothing is lost, owned twice or taken back.

The short forms run here; ``KAFKALITE_SOAK=1`` makes them 30 members for 60 s. ``KAFKALITE_STORM_SEED`` repeats the
decisions of a run, which every failure names. The harness itself is shown to be right by Apache Kafka, which has to
pass it, and to see what is wrong by members and brokers that do wrong on purpose.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_kafkalite.testing import apache_kafka as apache_kafka_part
from spark_kafkalite.testing import jars
from spark_kafkalite.testing.apache_kafka import ApacheKafka
from tests.conftest import fetch_or_skip
from tests.interop.storms.storm import BROKER_SETTINGS, JAVA, Plan, Storm

SOAK = bool(os.environ.get("KAFKALITE_SOAK"))
SEED = int(os.environ.get("KAFKALITE_STORM_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
MEMBERS, SECONDS = (30, 60) if SOAK else (8, 7)
PYTHON_KINDS = ("confluent", "kafka-python")
KINDS = (*PYTHON_KINDS, JAVA)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 if SOAK else 120)]


def weather(storm: Storm) -> str:
    """Say what it was: the decisions, and how much happened."""
    events = storm.events()
    counts = Counter(event.kind for event in events)
    generations = {event.generation for event in events if event.kind == "assigned"}
    return (
        f"KAFKALITE_STORM_SEED={storm.plan.seed}; {len(generations)} generations; "
        f"{counts['delivered']} pieces delivered, {counts['committed']} commits, {counts['refused']} refused; "
        + "; ".join(storm.actions)
    )


@pytest.fixture(scope="module")
def apache_kafka_for_storms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    if (reason := apache_kafka_part.available()) is not None:
        pytest.skip(reason)
    fetch_or_skip(jars.APACHE_KAFKA)
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), overrides=BROKER_SETTINGS) as running:
        yield running


@pytest.mark.kafka
def test_apache_kafka_passes(apache_kafka_for_storms: ApacheKafka, tmp_path: Path) -> None:
    assignor = random.Random(SEED).choice(("range", "cooperative-sticky"))
    plan = Plan(SEED, KINDS, MEMBERS, SECONDS, assignor=assignor)
    with Storm(apache_kafka_for_storms.bootstrap, tmp_path, plan, topic="passes", group="passes") as storm:
        storm.blow()
        found = storm.finish()
        print(weather(storm))
    assert found == [], weather(storm)


@pytest.mark.kafka
def test_members_that_do_wrong_are_seen(apache_kafka_for_storms: ApacheKafka, tmp_path: Path) -> None:
    kinds = ("confluent", "confluent!skip", "kafka-python!commit-early", "confluent!commit-back", "confluent!own-more")
    plan = Plan(SEED, kinds, 7, 4, pace_s=0.25)
    with Storm(apache_kafka_for_storms.bootstrap, tmp_path, plan, topic="wrong", group="wrong") as storm:
        storm.blow()
        found = {line.split(":")[0] for line in storm.finish(timeout_s=3)}
    expected = {"record lost", "broken stream", "commit ahead of delivery", "commit went back", "two owners"}
    assert expected <= found, weather(storm)
