"""The levels of this process's loggers, which DescribeConfigs shows and IncrementalAlterConfigs changes.

Loggers have the names of our packages and modules (``spark_kafkalite.broker.upkeep.retention``), and Kafka's levels.
The audit log has Kafka's name (``kafka.authorizer.logger``).
"root" is the one above all of them, which ``broker/event_log.py`` gives the level of the setting ``logging.level``. A
logger without a level of its own has that of the nearest one above it. What is changed holds until the process ends.

Source: org.apache.kafka.server.logger.LoggingController of Apache Kafka 4.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from spark_kafkalite.broker.event_log import AUDIT_LOGGER
from spark_kafkalite.errors import InvalidConfig, InvalidRequest

ROOT: Final = "root"
_PACKAGE: Final = "spark_kafkalite"
# Kafka's levels; the number of TRACE is ours, below Python's lowest.
_LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}


def levels() -> dict[str, str]:
    """Return the level in force of each logger, by name in order; "root" is among them."""
    names = [ROOT, *(name for name in logging.root.manager.loggerDict if _is_ours(name))]
    return {name: _level_name(_logger(name).getEffectiveLevel()) for name in sorted(names)}


def check(changes: Mapping[str, str | None]) -> None:
    """Raise what forbids these changes; a level of None means that the logger's own one goes.

    InvalidConfig (40) for a logger or a level that does not exist, InvalidRequest (42) for a root without a level.
    """
    for name, level in changes.items():
        if name != ROOT and not (_is_ours(name) and name in logging.root.manager.loggerDict):
            raise InvalidConfig(f"Logger {name} does not exist!")
        if level is None and name == ROOT:
            raise InvalidRequest("Removing the log level of the root logger is not allowed")
        if level is not None and level not in _LEVELS:
            raise InvalidConfig(
                f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
                f"Valid log levels are {', '.join(sorted(_LEVELS))}"
            )


def change(changes: Mapping[str, str | None]) -> None:
    """Make changes that :func:`check` has seen."""
    for name, level in changes.items():
        number = logging.NOTSET if level is None else _LEVELS[level]
        if level is None and name == AUDIT_LOGGER:
            # It is not below "root", and has its level all the same.
            number = logging.getLogger(_PACKAGE).getEffectiveLevel()
        _logger(name).setLevel(number)


def _is_ours(name: str) -> bool:
    return name.startswith(f"{_PACKAGE}.") or name == AUDIT_LOGGER


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(_PACKAGE if name == ROOT else name)


def _level_name(number: int) -> str:
    """Return the name of the highest level that is not above ``number``: TRACE stands for everything."""
    return next((name for name, level in _LEVELS.items() if level <= number), "TRACE")
