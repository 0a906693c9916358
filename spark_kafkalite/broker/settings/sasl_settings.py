"""Declares the settings of SASL: how clients authenticate on the listeners SASL_PLAINTEXT and SASL_SSL."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.security.sasl_server import PLAIN
from spark_kafkalite.security.scram import SCRAM_HASHES
from spark_kafkalite.settings import Setting

MECHANISMS: Final = (PLAIN, *SCRAM_HASHES)

# Those that may be given for one listener, and for one mechanism of it.
SASL_LISTENER_SETTINGS: Final = (
    Setting(
        "sasl.enabled.mechanisms",
        "list",
        (),
        "SASL mechanisms by which clients may authenticate on listeners SASL_PLAINTEXT and SASL_SSL. Brokers among "
        "themselves use SCRAM-SHA-256 with the cluster secret, whatever is named here.",
        choices=MECHANISMS,
    ),
    Setting(
        "sasl.jaas.config",
        "password",
        None,
        "The users of PLAIN and their passwords, as listener.name.LISTENER.plain.sasl.jaas.config="
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD" ...; The users of SCRAM '
        "are in the registry (kafkalite users).",
    ),
    Setting(
        "connections.max.reauth.ms",
        "long",
        0,
        "After this time a client must have authenticated again (KIP-368), or its connection is closed at its next "
        "request. So a deleted user, or one with a new password, is served no longer. 0: a connection lasts.",
        unit="ms",
        minimum=0,
    ),
)
SASL_SETTINGS: Final = (
    *SASL_LISTENER_SETTINGS,
    Setting(
        "sasl.server.max.receive.size",
        "int",
        64 * 1024,
        "Largest request of a client that has not authenticated; a larger one closes its connection. Apache Kafka's "
        "default is 524288, for tickets of Kerberos; at most 1,000 connections of clients may be in their "
        "authentication at a time, and one more ends the oldest.",
        unit="bytes",
        minimum=1024,
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        "int",
        100,
        "How long the broker waits until it answers a client that failed to authenticate, and closes its connection. "
        "After 10 failures from one address within 10 seconds it waits at least 5 seconds.",
        unit="ms",
        minimum=0,
        maximum=60_000,
    ),
)
