"""Which causes of a loss end a read, and what users are told of it."""

from __future__ import annotations

import pickle

import pytest

from spark_kafkalite.spark.conditions import SparkConditionError
from spark_kafkalite.spark.options.options import reader_options
from spark_kafkalite.spark.reading.data_loss import DataLoss, LossCause, LossPolicy


def policy(**given: str) -> LossPolicy:
    return reader_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **given}).losses


@pytest.mark.parametrize("cause", LossCause)
@pytest.mark.parametrize("default", ["true", "false"])
@pytest.mark.parametrize("own", [None, "fail", "warn", "WARN"])
def test_a_causes_own_option_wins(cause: LossCause, default: str, own: str | None) -> None:
    given = {} if own is None else {cause.option: own}
    found = policy(failOnDataLoss=default, **given)
    assert found.fails(cause) == (default == "true" if own is None else own == "fail")
    for other in set(LossCause) - {cause}:
        assert found.fails(other) == (default == "true")
    assert pickle.loads(pickle.dumps(found)) == found


def test_all_fail_when_no_option_says_anything() -> None:
    assert all(policy().fails(cause) for cause in LossCause)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "failOnDataLoss=true: 5 are gone; restore it, or set failOnDataLoss=false (or dataLoss.agedOut=warn)"),
        (
            {"dataLoss.agedOut": "fail", "failOnDataLoss": "false"},
            "dataLoss.agedOut=fail: 5 are gone; restore it, or set dataLoss.agedOut=warn",
        ),
    ],
)
def test_an_error_names_what_decided_and_what_to_set(given: dict[str, str], error: str) -> None:
    with pytest.raises(SparkConditionError) as raised:
        policy(**given).meet(DataLoss("KAFKA_DATA_LOSS.X", LossCause.AGED_OUT, "5 are gone"))
    assert str(raised.value).splitlines()[-1] == f"[KAFKA_DATA_LOSS.X] {error} to go on without it"


@pytest.mark.parametrize(
    ("given", "said"),
    [({"failOnDataLoss": "false"}, "failOnDataLoss=false"), ({"dataLoss.deleted": "warn"}, "dataLoss.deleted=warn")],
)
def test_a_warning_names_what_decided(given: dict[str, str], said: str, caplog: pytest.LogCaptureFixture) -> None:
    policy(**given).meet(DataLoss("KAFKA_DATA_LOSS.X", LossCause.DELETED, "t is gone"), ", without it")
    assert caplog.messages == [f"[KAFKA_DATA_LOSS.X] {said}: t is gone; going on, without it"]


def test_a_value_that_there_is_not_is_refused() -> None:
    with pytest.raises(SparkConditionError, match=r"dataLoss\.agedOut=ignore: .*fail, warn"):
        policy(**{"dataLoss.agedOut": "ignore"})
    with pytest.raises(SparkConditionError, match=r"did you mean dataLoss\.agedOut\?"):
        policy(**{"dataLoss.agedouts": "warn"})
