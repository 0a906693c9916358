import pickle

import pytest

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.redaction import REDACTED
from spark_kafkalite.security.settings import SECURITY_SETTINGS
from spark_kafkalite.spark.conditions import (
    CONNECTION_FAILED,
    INVALID_OPTION,
    SparkConditionError,
    option_error,
)
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.workers.connections import _as_condition, reading_config, writing_config
from tests import canary

SECRET_SETTINGS = [setting for setting in SECURITY_SETTINGS if setting.kind == "password"]


def test_the_last_line_is_the_condition():
    error = option_error("SOME_CONDITION", "option", "a\nb", "is\nwrong; do this")
    assert str(error).splitlines()[-1] == "[SOME_CONDITION] option=a b: is wrong; do this"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("secret", canary.SECRETS.values(), ids=canary.SECRETS.keys())
@pytest.mark.parametrize("setting", SECRET_SETTINGS, ids=lambda setting: setting.name)
def test_no_condition_shows_a_secret(setting, secret):
    option = f"kafka.{setting.name}"
    errors = [
        option_error(INVALID_OPTION, option, secret, "is wrong"),
        option_error(INVALID_OPTION, secret, "x", "is wrong") if " " in secret else None,
        # As the client's own words reach us, whether it has hidden the value or not.
        _as_condition(ConfigError(f"{setting.name}={REDACTED}: is wrong"), {setting.name: secret}),
        _as_condition(ConfigError(f"{setting.name}={secret}: is wrong"), {setting.name: secret}),
        _as_condition(ConfigError(f"{setting.name}: is wrong"), {setting.name: secret}),
    ]
    for error in filter(None, errors):
        assert str(error).endswith(": is wrong; change or remove it") or str(error).endswith(": is wrong")
        assert [leak for text in canary.exception_texts(error) for leak in canary.leaks(text)] == []


@pytest.mark.parametrize(
    ("check", "settings", "expected"),
    [
        (reading_config, {"fetch.min.bytes": "x"}, "[KAFKALITE_INVALID_OPTION] kafka.fetch.min.bytes=x: not a valid int; "),  # noqa: E501
        (reading_config, {"fetch.min.bytes": "-1"}, "[KAFKALITE_INVALID_OPTION] kafka.fetch.min.bytes=-1: must be at least 0; "),  # noqa: E501
        (reading_config, {"isolation.level": "x"}, "[KAFKALITE_INVALID_OPTION] kafka.isolation.level=x: must be one of "),  # noqa: E501
        (reading_config, {"bootstrap.servers": "h"}, "[KAFKALITE_INVALID_OPTION] kafka.bootstrap.servers=h: "),
        (writing_config, {"acks": "2"}, "[KAFKALITE_INVALID_OPTION] kafka.acks=2: must be one of "),
        (writing_config, {"acks": "1", "enable.idempotence": "true"}, "[KAFKALITE_INVALID_OPTION] kafka.enable.idempotence=true: "),  # noqa: E501
        (writing_config, {"transactional.id": "x"}, "[KAFKALITE_INVALID_OPTION] kafka.transactional.id=x: "),
    ],
)  # fmt: skip
def test_complaints_of_the_client_name_the_option(check, settings, expected):
    with pytest.raises(SparkConditionError) as caught:
        check({"bootstrap.servers": "h:1", **settings})
    assert str(caught.value).splitlines()[-1].startswith(expected)


def test_what_an_option_must_be_is_said_once():
    for check, settings, said in (
        (reading_config, {"fetch.min.bytes": "x"}, "not a valid int; give a whole number of bytes, at least 0"),
        (reading_config, {"fetch.min.bytes": "-1"}, "must be at least 0; change or remove it"),
        (lambda options: reader_options({**options, "subscribe": "t"}), {"minPartitions": "0"}, "must be at least 1"),
        (
            reading_config,
            {"security.protocol": "SASL_SSL"},
            "kafka.sasl.mechanism is not set: give one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI",
        ),
    ):
        with pytest.raises(SparkConditionError) as caught:
            check({"bootstrap.servers": "h:1", **settings})
        assert str(caught.value).endswith(f": {said}")


def test_an_option_is_not_blamed_for_a_server_that_does_not_answer():
    assert 'an option of format("kafkalite") is wrong' in str(
        option_error(INVALID_OPTION, "subscribe", "x", "is wrong")
    )
    unreachable = option_error(CONNECTION_FAILED, "kafka.bootstrap.servers", "h:1", "no broker answers")
    assert str(unreachable).startswith('format("kafkalite") cannot go on:\n[KAFKALITE_CONNECTION_FAILED] kafka.boot')


def test_a_complaint_that_names_no_setting_still_has_a_condition():
    assert "[KAFKALITE_INVALID_OPTION] kafka.*: " in str(_as_condition(ConfigError("something odd"), {}))
