"""Recorded disasters that the brokers do not survive yet, each with one line why. The list may only become shorter:
``test_disasters`` fails when one of them passes."""

from __future__ import annotations

from typing import Final

KNOWN_FAILURES: Final[dict[str, str]] = {
    "bad sector: start takes the log directory offline": "a log that cannot be opened waits for an operator",
    "file cut .log: a short segment is led on": "zeros behind a cut are read like records; only a CRC tells",
    "flip header: damage below the recovery point is served": "only what lies behind the recovery point is read again",
    "flip record: damage below the recovery point is served": "only what lies behind the recovery point is read again",
    "log start raised: all replicas delete what one says": "log-start-offset-checkpoint is believed, and followed",
}
