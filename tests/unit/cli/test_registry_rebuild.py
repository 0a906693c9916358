"""What ``kafkalite registry rebuild`` says of what no log holds."""

from pathlib import Path

import pytest

from spark_kafkalite.broker.standalone.registry_rebuild import RebuildPlan, RebuiltTopic
from spark_kafkalite.cli.registry_rebuild import _show


def rebuilt(name: str) -> RebuiltTopic:
    return RebuiltTopic(name, bytes(16), {0: 1}, (), {"retention.ms": "-1"})


def test_the_broker_s_own_topic_is_not_among_those_whose_settings_are_lost(capsys: pytest.CaptureFixture[str]) -> None:
    own = rebuilt("__consumer_offsets")
    _show(RebuildPlan(Path("r"), "c", 1, topics=[own, rebuilt("events")]))
    assert "the settings of events are in no log: set them again" in capsys.readouterr().err
    _show(RebuildPlan(Path("r"), "c", 1, topics=[own]))
    assert "set them again" not in capsys.readouterr().err
