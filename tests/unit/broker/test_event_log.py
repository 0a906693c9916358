import json
import logging
import sys

import pytest

from spark_kafkalite.broker.event_log import JsonFormatter, QuietLog


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


def test_json_lines_have_the_event_and_one_line_for_an_error() -> None:
    formatter = JsonFormatter(7)
    try:
        raise ValueError("wrong\nvalue")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, "", 0, "of %s\n", ("us\x1b",), sys.exc_info())
    record.event = {"connection": "h:1", "level": "not this", "times": {"totalTimeMs": 1.5}}
    record.created, record.msecs = 1_700_000_000.25, 250.0
    text = formatter.format(record)
    assert "\n" not in text and "\x1b" not in text
    line = json.loads(text)
    assert line.pop("exception").endswith("ValueError: wrong\nvalue")
    assert line == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "ERROR",
        "logger": "a.b",
        "msg": "of us\x1b\n",
        "broker": 7,
        "connection": "h:1",
        "times": {"totalTimeMs": 1.5},
    }
