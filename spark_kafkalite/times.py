"""Times as people write them, read the same way by commands, jobs and Spark's options."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_LONG_MAX: Final = 2**63 - 1
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,19}")


def moment_ms(text: str) -> int:
    """Return milliseconds since the epoch of such a number, or of an ISO 8601 date and time (UTC without a zone).

    Raises ValueError for anything else, and for a time before 1970: it would be one of the negative numbers that stand
    for places in a log, such as -1 for its end (ListOffsetsRequest).
    """
    text = text.strip()
    if _WHOLE_NUMBER.fullmatch(text):
        if int(text) > _LONG_MAX:
            raise ValueError(f"{text} ms is beyond {_LONG_MAX}")
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    found_ms = round(moment.timestamp() * 1000)
    if found_ms < 0:
        raise ValueError(f"{text} is before 1970")
    return found_ms
