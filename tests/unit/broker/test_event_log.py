import logging

import pytest

from spark_kafkalite.broker.event_log import QuietLog


def test_a_flood_is_counted_instead_of_written(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    quiet = QuietLog(logging.getLogger("test"), burst=2, period_s=10, monotonic_s=lambda: now[0])
    with caplog.at_level(logging.INFO, "test"):
        written = [quiet.log(logging.INFO, "kind", "event %d", number) for number in range(5)]
        other = quiet.log(logging.INFO, "other", "another kind")
        now[0] = 11
        quiet.log(logging.INFO, "kind", "event %d", 5)
    assert (written, other) == ([True, True, False, False, False], True)
    assert caplog.messages == ["event 0", "event 1", "another kind", "event 5 (3 more like this were not written)"]


def test_what_the_level_leaves_out_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    quiet = QuietLog(logging.getLogger("test"), burst=1)
    with caplog.at_level(logging.ERROR, "test"):
        assert not quiet.log(logging.INFO, "kind", "left out")
        assert quiet.log(logging.ERROR, "kind", "written")
