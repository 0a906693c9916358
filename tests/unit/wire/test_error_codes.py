from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode

from spark_kafkalite import errors
from spark_kafkalite.wire import error_codes

ERRORS = [code for code in ErrorCode if code != 0]


@pytest.mark.parametrize("expected", ERRORS, ids=lambda code: code.name)
def test_every_code_has_kios_name_and_retriability(expected):
    error = error_codes.error_for(int(expected))
    assert error_codes.name_of(int(expected)) == expected.name.upper()
    assert error.code == int(expected)
    assert error.retriable == expected.retriable
    assert error_codes.is_retriable(int(expected)) == expected.retriable
    # Spark's processes hand errors on to each other.
    unpickled = pickle.loads(pickle.dumps(error))
    assert (type(unpickled), str(unpickled)) == (type(error), str(error))


def test_no_code_is_known_that_kio_lacks():
    assert error_codes.codes() == sorted(int(code) for code in ERRORS)


def test_every_class_of_errors_py_is_used_for_its_code():
    named = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.KafkaError) and "code" in vars(value)
    ]
    for cls in named:
        if cls is not errors.KafkaError:
            assert error_codes.class_for(cls.code) is cls


@pytest.mark.parametrize("code", error_codes.codes())
def test_what_refreshes_metadata_is_retriable_and_every_class_says_what_it_means(code):
    cls = error_codes.class_for(code)
    assert cls.retriable or not cls.refresh_metadata
    assert cls.__doc__


def test_an_error_carries_the_brokers_text_and_the_codes_name():
    assert str(error_codes.error_for(36, "topic t is there")) == "topic t is there (TOPIC_ALREADY_EXISTS, code 36)"
    assert str(error_codes.error_for(68)) == "The group still has members. (NON_EMPTY_GROUP, code 68)"
    assert str(error_codes.error_for(68, "")) == "The group still has members. (NON_EMPTY_GROUP, code 68)"


def test_a_rare_class_is_named_after_its_code():
    assert type(error_codes.error_for(51)).__name__ == "ConcurrentTransactions"


def test_an_unknown_code_keeps_its_number():
    error = error_codes.error_for(9999, "what now")
    assert type(error) is errors.UnknownServerError
    assert str(error) == "what now (error code 9999)"
    assert not error_codes.is_retriable(9999)


def test_zero_is_no_error():
    assert error_codes.name_of(0) == "NONE"
    assert not error_codes.is_retriable(0)
