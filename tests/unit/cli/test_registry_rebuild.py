"""What ``kafkalite registry rebuild`` and ``cluster recover-registry`` say of what no log holds."""

import pytest

from spark_kafkalite.cli.recovery_text import show_recovery
from spark_kafkalite.model import BrokerId, TopicPartition
from spark_kafkalite.registry.recovery.plan import RecoveredTopic, RecoveryPlan
from spark_kafkalite.registry.znodes import uuid_text


def recovered(name: str, *, is_config_lost: bool = True) -> RecoveredTopic:
    return RecoveredTopic(name, bytes(16), {0: 1}, {0: BrokerId(1)}, (), {"retention.ms": "-1"}, is_config_lost)


def test_the_broker_s_own_topic_is_not_among_those_whose_settings_are_lost(capsys: pytest.CaptureFixture[str]) -> None:
    own = recovered("__consumer_offsets")
    show_recovery(RecoveryPlan("c", topics=[own, recovered("events")]), keeps_old=False, is_older=False)
    assert "the settings of events are in no log: set them again" in capsys.readouterr().err
    known = recovered("clicks", is_config_lost=False)
    show_recovery(RecoveryPlan("c", topics=[own, known]), keeps_old=False, is_older=False)
    assert "set them again" not in capsys.readouterr().err


def test_logs_of_no_topic_are_listed_with_what_becomes_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    deleted, other = uuid_text(bytes(range(16))), uuid_text(bytes(range(1, 17)))
    log = TopicPartition("events", 0)
    left_over = [(BrokerId(1), log, deleted), (BrokerId(2), log, other)]
    plan = RecoveryPlan("c", left_over=left_over, deleted_ids={deleted})
    show_recovery(plan, keeps_old=True, is_older=True)
    said = capsys.readouterr().err
    assert f"broker 1 has a log of events-0, which was deleted (id {deleted}): when it starts it deletes it" in said
    assert "broker 2 has a log of events-0 of another topic of that name" in said
    assert "sets the log aside (-stray)" in said
