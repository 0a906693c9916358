"""What the cluster's refusals mean to a Spark user: the condition, the option to change, and the broker's own reason.

Clients name settings as Kafka does; an option has ``kafka.`` in front of that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from spark_kafkalite.client.config import CONSUMER_SETTINGS
from spark_kafkalite.errors import (
    AdvertisedUnreachable,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    HandshakeFailed,
    IllegalSaslState,
    KafkaliteError,
    NoBrokerThere,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnsupportedSaslMechanism,
)
from spark_kafkalite.spark.conditions import (
    AUTHENTICATION_FAILED,
    AUTHORIZATION_FAILED,
    CONNECTION_FAILED,
    SparkConditionError,
    option_error,
)

_REFUSED_CREDENTIALS: Final = (SaslAuthenticationFailed, UnsupportedSaslMechanism, IllegalSaslState)
_REFUSED_RIGHTS: Final = (
    TopicAuthorizationFailed,
    GroupAuthorizationFailed,
    ClusterAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
_NAMES: Final = sorted(
    (
        setting.name
        for setting in CONSUMER_SETTINGS
        if setting.name.startswith(("security.", "ssl.", "sasl.", "bootstrap."))
    ),
    key=len,
    reverse=True,
)
_NAME: Final = re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, _NAMES))})(?!\.?\w)")


# How long a cluster is asked again that answers, and of which no address that it advertises was ever reached.
ADVERTISED_TIMEOUT_MS: Final = 25_000


def patience_ms(error: KafkaliteError, timeout_ms: float, is_given: bool) -> float:
    """Return how long to go on after such an error: ``timeout_ms``, which the user has given or not, or shorter.

    Waiting does not fix an ``advertised.listeners`` that is wrong.
    """
    if is_given or not isinstance(error, AdvertisedUnreachable) or not error.is_first:
        return timeout_ms
    return min(timeout_ms, ADVERTISED_TIMEOUT_MS)


def as_options(text: str) -> str:
    """Return a client's text with ``kafka.`` in front of the names of settings in it, as their options are called.

    These are the settings of addresses and of security: texts about a connection name no others.
    """
    return _NAME.sub(r"kafka.\1", text)


def refusal(error: KafkaliteError, client: Mapping[str, str], asked: str) -> SparkConditionError | None:
    """Return the user's error when the cluster refused our credentials or what we asked for; None for other errors.

    ``asked`` is the option that asked for it, as ``name=value``.
    """
    if isinstance(error, SparkConditionError):
        return error
    if isinstance(error, _REFUSED_RIGHTS):
        return SparkConditionError(AUTHORIZATION_FAILED, f"{asked}: {as_options(str(error))}")
    if isinstance(error, _REFUSED_CREDENTIALS):
        option = "sasl.mechanism" if client.get("sasl.mechanism") else "security.protocol"
    elif isinstance(error, SslHandshakeFailed):
        option = "security.protocol"
    else:
        return None
    return option_error(AUTHENTICATION_FAILED, f"kafka.{option}", client.get(option), as_options(str(error)))


def unreachable(
    error: KafkaliteError, client: Mapping[str, str], asked: str, given_up: str | None = None
) -> SparkConditionError:
    """Return the user's error for a cluster that refuses us, as :func:`refusal` does, or that does not answer.

    ``given_up`` is the time after which the read gave up, and the option that sets it.
    """
    refused = refusal(error, client, asked)
    if refused is not None:
        return refused
    text = as_options(str(error))
    if given_up is not None:
        text = f"{text}; given up after {given_up}"
    # What is there is no broker, has another kind of listener, or advertises a wrong address: the error says so, and
    # what to change.
    if not isinstance(error, (HandshakeFailed, NoBrokerThere, AdvertisedUnreachable)):
        text = f"{text}; start the broker, or correct the address"
    return option_error(CONNECTION_FAILED, "kafka.bootstrap.servers", client.get("bootstrap.servers", ""), text)
