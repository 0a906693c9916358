import inspect
import re
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from spark_kafkalite import errors

# Where Kafka's own name carries a word that ours does without.
OTHER_NAMES = {"InvalidTopic": "invalid_topic_exception"}
# What a client makes of an answer without an error: it says where, and has the code of what it is a kind of.
OF_CLIENTS = (errors.LogTruncated,)
BRANCHES = (errors.KafkaError, errors.RetriableError, errors.StaleMetadataError)


def all_errors() -> Iterator[type[errors.KafkaliteError]]:
    for _, value in inspect.getmembers(errors, inspect.isclass):
        if issubclass(value, errors.KafkaliteError):
            yield value


WIRE_ERRORS = [
    error for error in all_errors() if issubclass(error, errors.KafkaError) and error not in (*BRANCHES, *OF_CLIENTS)
]


def test_no_two_errors_have_one_code() -> None:
    codes = [error.code for error in WIRE_ERRORS]
    assert len(set(codes)) == len(codes) > 50


@pytest.mark.parametrize("error", WIRE_ERRORS, ids=lambda error: error.__name__)
def test_code_name_and_retriable_are_those_of_the_protocol(error: type[errors.KafkaError]) -> None:
    official = ErrorCode(error.code)
    in_snake_case = re.sub(r"(?<!^)([A-Z])", r"_\1", error.__name__).lower()
    assert official.name == OTHER_NAMES.get(error.__name__, in_snake_case)
    assert official.retriable == error.retriable


def test_text_fits_into_an_answer_whatever_a_client_has_sent() -> None:
    for character in "xé\U0001f600":
        text = str(errors.InvalidConfig(f"unknown setting {character * 32767}"))
        assert text.startswith(f"unknown setting {character * 100}") and text.endswith("... (32783 characters)")
        assert len(text.encode()) <= 32767 - 1000
    assert str(errors.InvalidConfig("x" * 4000)) == "x" * 4000


@pytest.mark.parametrize("error", [*WIRE_ERRORS, *BRANCHES], ids=lambda error: error.__name__)
def test_only_what_can_be_tried_again_asks_for_new_metadata(error: type[errors.KafkaError]) -> None:
    assert error.retriable or not error.refresh_metadata
    assert error.refresh_metadata == issubclass(error, errors.StaleMetadataError)


def test_local_errors_have_no_code() -> None:
    local = [error for error in all_errors() if not issubclass(error, errors.KafkaError)]
    assert errors.BrokerUnreachable in local
    assert not any(hasattr(error, "code") for error in local)


@pytest.mark.parametrize("error", list(all_errors()), ids=lambda error: error.__name__)
def test_every_error_says_what_it_means_and_keeps_its_message(error: type[errors.KafkaliteError]) -> None:
    assert error.__doc__
    assert error.__doc__.rstrip().endswith(".")
    if error not in OF_CLIENTS:
        assert str(error("orders-3: offset 9 is beyond 5")) == "orders-3: offset 9 is beyond 5"
