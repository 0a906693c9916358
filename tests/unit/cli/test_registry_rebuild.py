"""What ``kafkalite registry rebuild`` and ``cluster recover-registry`` say of what no log holds."""

import pytest

from spark_kafkalite.cli.recovery_text import show_recovery
from spark_kafkalite.model import BrokerId
from spark_kafkalite.registry.recovery.plan import RecoveredTopic, RecoveryPlan


def recovered(name: str) -> RecoveredTopic:
    return RecoveredTopic(name, bytes(16), {0: 1}, {0: BrokerId(1)}, (), {"retention.ms": "-1"})


def test_the_broker_s_own_topic_is_not_among_those_whose_settings_are_lost(capsys: pytest.CaptureFixture[str]) -> None:
    own = recovered("__consumer_offsets")
    show_recovery(RecoveryPlan("c", topics=[own, recovered("events")]), keeps_old=False, is_older=False)
    assert "the settings of events are in no log: set them again" in capsys.readouterr().err
    show_recovery(RecoveryPlan("c", topics=[own]), keeps_old=False, is_older=False)
    assert "set them again" not in capsys.readouterr().err
