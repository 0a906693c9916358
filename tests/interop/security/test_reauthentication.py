"""Sessions that end every two seconds: our clients authenticate again under full load, and nobody notices.

``KAFKALITE_SOAK=1`` runs for a minute with each mechanism.
"""

from __future__ import annotations

import logging
import os

import pytest

from spark_kafkalite.testing.secure_kafka import PLAIN, SCRAM_256, SESSION_MS, Listener, SecureKafka
from tests.interop.security.numbered_load import NumberedLoad
from tests.interop.security.round_trip import new_name
from tests.interop.security.tcp_connections import connections_to

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SOAK = bool(os.environ.get("KAFKALITE_SOAK"))
SESSIONS = 30 if SOAK else 5


@pytest.mark.parametrize("mechanism", [PLAIN, SCRAM_256] if SOAK else [SCRAM_256])
def test_load_over_many_sessions(secure_kafka: SecureKafka, mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost, doubled, reordered or logged, and no connection is replaced."""
    caplog.set_level(logging.WARNING)
    settings = secure_kafka.client_settings(Listener.REAUTHENTICATION, mechanism)
    load = NumberedLoad(settings, new_name())
    load.start()
    first = connections_to(settings["bootstrap.servers"])
    later: set[int] = set()
    try:
        # The kernel knows a closed connection for a minute only.
        for _ in range(SESSIONS):
            load.run_for(SESSION_MS / 1000)
            later |= connections_to(settings["bootstrap.servers"])
    finally:
        load.finish()
    assert later <= first, f"{len(later - first)} connections beside the {len(first)} first ones"
    assert caplog.messages == []
    print(f"{load.sent * 4:,} records, {load.answers} answers, {len(first)} connections")
