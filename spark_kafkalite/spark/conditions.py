"""The errors that a Spark user sees: a named condition, the option and its value, and what to do.

Owns the exception that the source and the sink raise towards Spark, and the condition names.
Spark shows a Python traceback, so the text is built for its end: a headline, then one last line of the form
``[CONDITION] option=value: what is wrong; do this``. Where Spark's JVM connector has a name for a condition, that name
is used, so that what people know how to search for still works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.printable import first_of, printable
from spark_kafkalite.redaction import shown_name, shown_value

INVALID_OPTION: Final = "KAFKALITE_INVALID_OPTION"
UNKNOWN_OPTION: Final = "KAFKALITE_UNKNOWN_OPTION"
UNSUPPORTED_OPTION: Final = "KAFKALITE_UNSUPPORTED_OPTION"
CONNECTION_FAILED: Final = "KAFKALITE_CONNECTION_FAILED"
AUTHENTICATION_FAILED: Final = "KAFKALITE_AUTHENTICATION_FAILED"
AUTHORIZATION_FAILED: Final = "KAFKALITE_AUTHORIZATION_FAILED"
TOPIC_NOT_FOUND: Final = "KAFKALITE_TOPIC_NOT_FOUND"
INVALID_SCHEMA: Final = "KAFKALITE_INVALID_SCHEMA"
INVALID_OFFSET: Final = "KAFKALITE_INVALID_OFFSET"
READ_FAILED: Final = "KAFKALITE_READ_FAILED"
WRITE_FAILED: Final = "KAFKALITE_WRITE_FAILED"
SCHEMA_REGISTRY_FAILED: Final = "KAFKALITE_SCHEMA_REGISTRY_FAILED"

# The JVM connector's names: connector/kafka-0-10-sql, kafka-error-conditions.json.
OFFSETS_DO_NOT_MATCH_ASSIGNED: Final = "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"
TIMESTAMPS_DO_NOT_MATCH_ASSIGNED: Final = "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"
START_AND_END_MISMATCH: Final = "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET"
UNRESOLVED_START_AFTER_END: Final = "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
RESOLVED_START_AFTER_END: Final = "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
NULL_TOPIC: Final = "KAFKA_NULL_TOPIC_IN_DATA"
LOSS_INITIAL_NOT_FOUND: Final = "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS"
LOSS_ADDED_NOT_FROM_ZERO: Final = "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO"
LOSS_START_RESET: Final = "KAFKA_DATA_LOSS.START_OFFSET_RESET"
LOSS_PARTITIONS_DELETED: Final = "KAFKA_DATA_LOSS.PARTITIONS_DELETED"
LOSS_OFFSET_CHANGED: Final = "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED"
LOSS_COULD_NOT_READ: Final = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"

_LONGEST_LIST: Final = 10


class SparkConditionError(KafkaliteError):
    """An error meant for the Spark user. ``condition`` is its name, ``detail`` the text behind it."""

    def __init__(self, condition: str, detail: str, headline: str = 'format("kafkalite") cannot go on') -> None:
        self.condition = condition
        self.detail = one_line(detail)
        self.headline = headline
        super().__init__(condition, detail, headline)

    def __str__(self) -> str:
        return f"{self.headline}:\n[{self.condition}] {self.detail}"


def option_error(condition: str, option: str, value: object, wrong: str) -> SparkConditionError:
    """Return the error for one option; ``value`` None: it is not set. Secrets are redacted.

    The headline blames the option, but not for a server that cannot be reached: its address may well be right.
    """
    shown = "(not set)" if value is None else shown_value(option, value)
    detail = f"{shown_name(option)}={shown}: {wrong}"
    if condition in (CONNECTION_FAILED, AUTHENTICATION_FAILED):
        return SparkConditionError(condition, detail)
    return SparkConditionError(condition, detail, 'an option of format("kafkalite") is wrong')


def one_line(text: str) -> str:
    """Return the text with every run of white space as one blank, so that it stays one line of a traceback, and with
    control characters escaped."""
    return printable(" ".join(text.split()))


def listed(items: Sequence[object]) -> str:
    """Return the items with commas; of many the first ten, since a topic may have thousands of partitions."""
    return first_of(items, _LONGEST_LIST)
