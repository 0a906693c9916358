"""OAUTHBEARER tokens from the driver to the tasks, so that not each of them asks the identity provider.

The driver's process fetches a token and renews it, and each task carries the token of the moment of its planning. The
Python worker that runs the task uses the token while it is valid. After that the worker asks for one itself, once for
all of its tasks. Many workers may do so at the same moment, each with its first task of an old plan. So a worker waits
for a short random time first.

Delegation tokens and passwords are not handed over, because they need no identity provider.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.redaction import shown_value
from spark_kafkalite.spark.cluster_errors import unreachable

if TYPE_CHECKING:
    from spark_kafkalite.client.client_config import ClientConfig
    from spark_kafkalite.security.tokens import HeldToken

_LOG = logging.getLogger("spark_kafkalite.spark")
_SPREAD_S: Final = 2.0


def token_for_tasks(config: ClientConfig, settings: Mapping[str, str], asked: str) -> HeldToken | None:
    """Return the token that tasks are to use, None if none is needed, or if it has no time at which it expires.

    Raises SparkConditionError when there is none to be had; ``asked`` as in ``cluster_errors.refusal``.
    """
    try:
        token = config.security.current_token()
    except KafkaliteError as error:
        raise unreachable(error, settings, asked) from None
    return token if token is not None and token.expires_at_s is not None else None


def warn_of_shipped_token(config: ClientConfig, setting: str, path: str) -> None:
    """Warn that a token lies in a copy that Spark has shipped: it is good until it expires, and is not renewed."""
    try:
        token = config.security.current_token()
    except KafkaliteError:
        return  # Its use says so.
    until = ""
    if token is not None and token.expires_at_s is not None:
        until = f"; its token expires at {datetime.fromtimestamp(token.expires_at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
    _LOG.warning(
        "kafka.%s: %s is the copy that Spark has shipped, which is never renewed%s. For longer, name a path at which "
        "every host has a file that is",
        setting,
        shown_value(setting, path),
        until,
    )


def use_token(config: ClientConfig, token: HeldToken | None) -> None:
    """Have this process's clients of the same source of tokens use the one that came with a task."""
    if token is None or config.security.take_token(token):
        return
    # It has expired on the way, and no later task has brought a better one.
    time.sleep(random.uniform(0, _SPREAD_S))
