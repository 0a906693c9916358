"""Sessions that end every two seconds: our clients authenticate again under full load, and nobody notices.

A broker closes a connection whose requests it reads after the session's end, so on a machine that is busy with other
things a few have to be opened again, and the clients warn of that. The soak runs for a minute with each mechanism, and
expects none: give it a quiet machine.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter

import pytest

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

SESSIONS = 30 if SOAK else 4

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
    load = NumberedLoad(settings, new_name())
    load.start()
    caplog.clear()
    # A client opens its last connection some moments after its first work.
    load.run_for(SESSION_MS / 1000)
    first = connections_to(settings["bootstrap.servers"])
    later: set[int] = set()
    # For how many looks in a row, a session or more apart, each connection has been there.
    looks: Counter[int] = Counter(first)
    try:
        # The kernel knows a closed connection for a minute only.
        for session in itertools.count(1):
            load.run_for(SESSION_MS / 1000)
            now = connections_to(settings["bootstrap.servers"])
            later |= now
            looks = Counter({each: looks[each] + 1 for each in now})
            # Without authentication each would end with its session.
            if session >= SESSIONS and (SOAK or max(looks.values(), default=0) >= 4):
                break
    finally:
        load.finish()
    # Only what these clients say: the process has others', of tests before.
    said = [record.getMessage() for record in caplog.records if record.name.startswith("spark_kafkalite.client")]
    if SOAK:
        assert said == [] and later <= first, f"{len(later - first)} connections beside the {len(first)} first ones"
    assert [text for text in said if not _LOST.search(text)] == []
    print(f"{load.sent * 4:,} records, {load.answers} answers, {len(first)} connections")
