"""Sessions that end every two seconds: our clients authenticate again under full load, and nobody notices.

A broker closes a connection whose requests it reads after the session's end, so on a machine that is busy with other
things a few have to be opened again, and the clients warn of that. The soak runs for a minute with each mechanism, and
expects none: give it a quiet machine.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from functools import partial

import pytest

from spark_kafkalite.client.network.connection import BrokerConnection
from spark_kafkalite.client.network.retry import Deadline
from tests.interop.security.numbered_load import NumberedLoad
from tests.interop.security.round_trip import new_name
from tests.interop.security.tcp_connections import connections_to
from tests.lab.secure_kafka import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_256,
    SESSION_MS,
    SecuredListener,
    SecureKafka,
    jaas,
)
from tests.seeds import SOAK

pytestmark = [pytest.mark.kafka]

# How often connections authenticate again, and how many of them at least: the producer's, the consumer's, the
# administrator's.
TIMES = 30 if SOAK else 3
CONNECTIONS = 3

# What a client says of a connection that the broker has closed.
_LOST = re.compile("closed the connection|Connection reset|Broken pipe")


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_256, OAUTHBEARER] if SOAK else [SCRAM_256])
def test_load_over_many_sessions(
    secure_kafka: SecureKafka, mechanism: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, doubled or out of order, and the connections live on."""
    caplog.set_level(logging.WARNING, "spark_kafkalite.client")
    settings = secure_kafka.client_settings(SecuredListener.REAUTHENTICATION, mechanism)
    if mechanism == OAUTHBEARER:
        monkeypatch.setenv("KAFKALITE_OAUTHBEARER_ALLOWED_URLS", secure_kafka.tokens.url)
        settings["sasl.oauthbearer.token.endpoint.url"] = secure_kafka.tokens.url
        settings["sasl.jaas.config"] = jaas(OAUTHBEARER, clientId="client", clientSecret="secret")
    renewed: Counter[BrokerConnection] = Counter()
    renew = BrokerConnection.renew

    def count(connection: BrokerConnection, deadline: Deadline) -> None:
        renew(connection, deadline)
        renewed[connection] += 1

    monkeypatch.setattr(BrokerConnection, "renew", count)

    def all_renewed(times: int) -> bool:
        return sum(each >= times for each in renewed.copy().values()) >= CONNECTIONS

    load = NumberedLoad(settings, new_name())
    load.start()
    caplog.clear()
    try:
        # A client opens its last connection some moments after its first work.
        load.run_for(SESSION_MS / 1000)
        first = connections_to(settings["bootstrap.servers"])
        later: set[int] = set()
        for times in range(1, TIMES + 1):
            load.wait_until(partial(all_renewed, times))
            later |= connections_to(settings["bootstrap.servers"])
    finally:
        load.finish()
    # Only what these clients say: the process has others', of tests before.
    said = [record.getMessage() for record in caplog.records if record.name.startswith("spark_kafkalite.client")]
    if SOAK:
        assert said == [] and later <= first, f"{len(later - first)} connections beside the {len(first)} first ones"
    assert [text for text in said if not _LOST.search(text)] == []
    print(f"{load.sent * 4:,} records, {load.answers} answers, {len(first)} connections")
