import json
import logging
import sys

from spark_kafkalite.broker.event_log import JsonFormatter


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
