"""Sessions that end every two seconds: our clients authenticate again under full load, and nobody notices.

A broker closes a connection whose requests it reads after the session's end, so on a machine that is busy with other
things a few have to be opened anew. ``KAFKALITE_SOAK=1`` runs for a minute with each mechanism, and expects none: give
it a quiet machine.
"""

from __future__ import annotations

import logging
import os

import pytest

from spark_kafkalite.testing.secure_kafka import (
    OAUTHBEARER,
    PLAIN,
    SCRAM_256,
    SESSION_MS,
    SecuredListener,
    SecureKafka,
    jaas,
)
from tests.interop.security.numbered_load import NumberedLoad
from tests.interop.security.round_trip import new_name
from tests.interop.security.tcp_connections import connections_to

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SOAK = bool(os.environ.get("KAFKALITE_SOAK"))
SESSIONS = 30 if SOAK else 5


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
    first = connections_to(settings["bootstrap.servers"])
    later: set[int] = set()
    try:
        # The kernel knows a closed connection for a minute only.
        for _ in range(SESSIONS):
            load.run_for(SESSION_MS / 1000)
            later |= connections_to(settings["bootstrap.servers"])
    finally:
        load.finish()
    new = later - first
    # Without authentication there would be a new one for each client and session.
    assert len(new) < (1 if SOAK else SESSIONS), f"{len(new)} connections beside the {len(first)} first ones"
    # Only what these clients say: the process has others', of tests before.
    said = [record.getMessage() for record in caplog.records if record.name.startswith("spark_kafkalite.client")]
    assert new or said == []
    print(f"{load.sent * 4:,} records, {load.answers} answers, {len(first)} connections")
