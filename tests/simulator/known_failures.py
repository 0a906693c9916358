"""Recorded disasters that the brokers do not survive yet, each with one line why. The list may only become shorter:
``test_disasters`` fails when one of them passes."""

from __future__ import annotations

from typing import Final

KNOWN_FAILURES: Final[dict[str, str]] = {
    "bad sector: read closes the connection": "an OSError of a read leaves the fetch handler",
    "bad sector: start takes the log directory offline": "EIO in one log is taken for a failure of the whole disk",
    "file cut .log: a short segment is led on": "nobody compares what a read gives with the log's own end",
    "flip header: damage below the recovery point is served": "only what lies behind the recovery point is read again",
    "flip record: damage below the recovery point is served": "only what lies behind the recovery point is read again",
    "log start raised: all replicas delete what one says": "log-start-offset-checkpoint is believed, and followed",
    "read error: read closes the connection": "an OSError of a read leaves the completion of a waiting fetch",
    "writes hang: leader keeps the leadership": "nothing measures how long a write takes",
}
