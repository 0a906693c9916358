from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from spark_kafkalite.broker.event_log import AUDIT_LOGGER
from spark_kafkalite.broker.settings import logger_levels
from spark_kafkalite.errors import InvalidConfig, InvalidRequest

NAME = "spark_kafkalite.of_a_test.module"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    above = logging.getLogger("spark_kafkalite")
    before = above.level
    yield logging.getLogger(NAME)
    above.setLevel(before)
    for name in (NAME, "spark_kafkalite.of_a_test"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_a_logger_without_a_level_has_that_of_the_nearest_above(logger: logging.Logger) -> None:
    logger_levels.change({"root": "ERROR"})
    assert logger_levels.levels()[NAME] == logger_levels.levels()["root"] == "ERROR"
    # A package that never logged itself may be given a level, for all that is in it.
    logger_levels.check({"spark_kafkalite.of_a_test": "DEBUG"})
    logger_levels.change({"spark_kafkalite.of_a_test": "DEBUG"})
    assert logger_levels.levels()[NAME] == "DEBUG"
    assert logger.isEnabledFor(logging.DEBUG)
    logger_levels.change({NAME: "FATAL"})
    assert (logger_levels.levels()[NAME], logger.level) == ("FATAL", logging.CRITICAL)
    logger_levels.change({NAME: None})
    assert logger_levels.levels()[NAME] == "DEBUG"


@pytest.mark.parametrize(("number", "name"), [(60, "FATAL"), (45, "ERROR"), (25, "INFO"), (7, "TRACE"), (1, "TRACE")])
def test_levels_between_kafkas_are_shown_as_the_one_below(logger: logging.Logger, number: int, name: str) -> None:
    logger.setLevel(number)
    assert logger_levels.levels()[NAME] == name


def test_loggers_of_other_packages_are_not_shown(logger: logging.Logger) -> None:
    others = [name for name in logger_levels.levels() if not name.startswith("spark_kafkalite.")]
    assert set(others) <= {"root", AUDIT_LOGGER}
    assert list(logger_levels.levels()) == sorted(logger_levels.levels())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"asyncio": "INFO"}, InvalidConfig),
        ({"spark_kafkalite": "INFO"}, InvalidConfig),
        ({"spark_kafkalite.none": None}, InvalidConfig),
        ({NAME: "info"}, InvalidConfig),
        ({NAME: ""}, InvalidConfig),
        ({NAME: "INFO", "root": None}, InvalidRequest),
    ],
)
def test_what_cannot_be(logger: logging.Logger, changes: dict[str, str | None], error: type[Exception]) -> None:
    with pytest.raises(error):
        logger_levels.check(changes)
