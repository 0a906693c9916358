"""Clients that a Python process of Spark keeps: one cluster client and one producer per set of settings.

Spark reuses its Python workers from task to task, so a connection that is kept here serves many tasks; a worker that is
idle for a minute is ended by Spark, and its connections with it. Entries belong to the process that made them: a forked
child starts with none, because threads and sockets do not survive a fork. Configurations are kept as well, since making
one may read and decrypt key stores.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_kafkalite.client.config import (
    ADMIN_SETTINGS,
    CONSUMER_SETTINGS,
    PRODUCER_SETTINGS,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    consumer_config,
    producer_config,
)
from spark_kafkalite.client.network.cluster import ClusterClient
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import REDACTED
from spark_kafkalite.settings import SettingGroup
from spark_kafkalite.spark.cluster_errors import as_options
from spark_kafkalite.spark.conditions import INVALID_OPTION, SparkConditionError, option_error
from spark_kafkalite.spark.workers.shipped_files import TOKEN_FILES, located
from spark_kafkalite.spark.workers.task_tokens import use_token, warn_of_shipped_token

if TYPE_CHECKING:
    from spark_kafkalite.client.produce.producer import Producer
    from spark_kafkalite.security.tokens import HeldToken

_T = TypeVar("_T")
_LOCK: Final = threading.Lock()
_OWNER = os.getpid()
_READING: dict[frozenset[tuple[str, str]], ConsumerConfig] = {}
_WRITING: dict[frozenset[tuple[str, str]], ProducerConfig] = {}
_CLUSTERS: dict[frozenset[tuple[str, str]], ClusterClient] = {}
_PRODUCERS: dict[frozenset[tuple[str, str]], Producer] = {}

# In a client's complaint, which is of the form "what is wrong; do this" or "what is wrong: do this".
_SAYS_WHAT_TO_DO: Final = re.compile(r";|: (set|give|remove|leave|use|name)\b")
# Of a consumer's settings, those that say something about this client and nothing about how to reach the cluster.
CLIENT_ID: Final = "spark-kafkalite"
# Fetches for Spark are large, unless the user says otherwise: each request costs a round trip and a wake-up.
DEFAULT_FETCH_BYTES: Final = 8 * 1024 * 1024


def reading_config(settings: Mapping[str, str], token: HeldToken | None = None) -> ConsumerConfig:
    """Return the client settings of a read; ``token`` came with the task that they are for.

    Raises SparkConditionError for a bad value, and for a file that is missing.
    """
    defaults = {"max.partition.fetch.bytes": str(DEFAULT_FETCH_BYTES), "client.id": CLIENT_ID}
    with _LOCK:
        _forget_parents()
        config = _kept(
            _READING,
            settings,
            token,
            lambda found: consumer_config({**defaults, **_known(CONSUMER_SETTINGS, found)}, {}),
            attrgetter("client"),
        )
    use_token(config.client, token)
    return config


def writing_config(settings: Mapping[str, str], token: HeldToken | None = None) -> ProducerConfig:
    """Return the client settings of a write, as :func:`reading_config` does those of a read."""
    with _LOCK:
        _forget_parents()
        config = _kept(
            _WRITING,
            settings,
            token,
            lambda found: producer_config(_writing_settings(found), {}),
            attrgetter("client"),
        )
    use_token(config.client, token)
    return config


def cluster_for(config: ClientConfig, settings: Mapping[str, str]) -> ClusterClient:
    """Return this process's cluster client for these settings."""
    key = frozenset(settings.items())
    with _LOCK:
        _forget_parents()
        cluster = _CLUSTERS.get(key)
        if cluster is None:
            cluster = _CLUSTERS[key] = ClusterClient(config)
        return cluster


def producer_for(settings: Mapping[str, str], token: HeldToken | None = None) -> Producer:
    """Return this process's producer for these settings. Raises SparkConditionError as :func:`reading_config` does."""
    from spark_kafkalite.client.produce.producer import Producer

    with _LOCK:
        _forget_parents()
        producer = _kept(
            _PRODUCERS,
            settings,
            token,
            lambda found: Producer(_writing_settings(found)),
            attrgetter("config.client"),
        )
    use_token(producer.config.client, token)
    return producer


def admin_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of the settings that an administrator reads, with this process's paths of the files in them."""
    own = {name: value for name, value in located(settings).items() if name in ADMIN_SETTINGS}
    return {"client.id": CLIENT_ID, **own}


def _kept(
    made: dict[frozenset[tuple[str, str]], _T],
    settings: Mapping[str, str],
    token: HeldToken | None,
    make: Callable[[Mapping[str, str]], _T],
    config_of: Callable[[_T], ClientConfig],
) -> _T:
    """Return what was made of the settings, or make it now. The caller holds the lock."""
    key = frozenset(settings.items())
    if key not in made:
        found = located(settings, has_token=token is not None)
        try:
            made[key] = make(found)
        except ConfigError as error:
            raise _as_condition(error, found) from None
        for name in TOKEN_FILES:
            if found.get(name) != settings.get(name):
                warn_of_shipped_token(config_of(made[key]), name, found[name])
    return made[key]


def _writing_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the producer's settings of a write: the user's, over defaults that suit whole columns."""
    defaults = {"client.id": CLIENT_ID, "batch.size": "262144", "linger.ms": "5"}
    return {**defaults, **_known(PRODUCER_SETTINGS, settings)}


def _known(group: SettingGroup, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that the client knows. It would warn of others in each process, a query does once."""
    return {name: value for name, value in settings.items() if name in group}


def drop_producer(settings: Mapping[str, str]) -> None:
    """Close and forget a producer whose state is in doubt after an error; the next task makes a new one."""
    with _LOCK:
        producer = _PRODUCERS.pop(frozenset(settings.items()), None)
    if producer is not None:
        producer.close(timeout_s=0)


def _forget_parents() -> None:
    global _OWNER
    if os.getpid() != _OWNER:
        _OWNER = os.getpid()
        _READING.clear()
        _WRITING.clear()
        _CLUSTERS.clear()
        _PRODUCERS.clear()


def _as_condition(error: ConfigError, settings: Mapping[str, str]) -> SparkConditionError:
    """Turn a client's complaint about a setting into the option's: its name comes before ``=``, ``:`` or a blank."""
    text = str(error)
    name = text.split("=")[0].split(":")[0].split()[0]
    if name not in settings and name not in PRODUCER_SETTINGS:
        return SparkConditionError(INVALID_OPTION, f"kafka.*: {as_options(text)}; correct it")
    wrong = text.removeprefix(name)
    if wrong.startswith("="):
        value = settings.get(name, "")
        wrong = wrong.removeprefix("=").removeprefix(REDACTED).removeprefix(repr(value)).removeprefix(value)
    elif not wrong.startswith(":"):
        wrong = text
    remedy = "" if _SAYS_WHAT_TO_DO.search(wrong) else "; change or remove it"
    return option_error(
        INVALID_OPTION, f"kafka.{name}", settings.get(name), f"{as_options(wrong.lstrip(': '))}{remedy}"
    )
