"""A log gets a few lines of a kind, and what lasts is named once a minute."""

import logging

import pytest

from spark_kafkalite.quiet_log import QuietLog


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


def test_what_lasts_is_written_once_a_minute_and_news_at_once(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    quiet = QuietLog.of_states(logging.getLogger("test"), lambda: now[0])

    def written(second: int, news: str) -> bool:
        now[0] = float(second)
        return quiet.log(logging.ERROR, "kind", "it fails: %s", news, news=news)

    assert [second for second in range(121) if written(second, "old")] == [0, 60, 120]
    assert written(121, "new") and not written(122, "new") and written(123, "old")
    quiet.forget("kind")
    assert written(124, "old")
    assert set(caplog.messages) == {"it fails: old", "it fails: new"}, "states are not counted"
