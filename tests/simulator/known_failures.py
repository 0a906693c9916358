"""Recorded disasters that the brokers do not survive yet, each with one line why. The list may only become shorter:
``test_disasters`` fails when one of them passes."""

from __future__ import annotations

from typing import Final

KNOWN_FAILURES: Final[dict[str, str]] = {
    "all power: follower ends within the leader's hole": (
        "a follower whose log ends between the ends of a filler batch refuses that batch for ever"
    ),
    "all power: unclean election takes a log with less": "elect takes the first live replica, not the best log",
    "bad sector: read closes the connection": "an OSError of a read leaves the fetch handler",
    "bad sector: start takes the log directory offline": "EIO in one log is taken for a failure of the whole disk",
    "file cut .log: a short segment is led on": "nobody compares what a read gives with the log's own end",
    "file emptied .log: an index points behind its segment": "a truncation that meets it never ends",
    "file missing .log: a segment that is gone is led on": "a leader that cannot read keeps the leadership",
    "file older .log: an index points behind its segment": "a truncation that meets it never ends",
    "file older leader-epoch-checkpoint: followers cut for ever": (
        "the file is believed after a clean stop, and followers cut below their high watermarks"
    ),
    "flip header: damage below the recovery point is served": "only what lies behind the recovery point is read again",
    "flip record: damage below the recovery point is served": "only what lies behind the recovery point is read again",
    "log start raised: all replicas delete what one says": "log-start-offset-checkpoint is believed, and followed",
    "node deleted state: brokers keep the state of before": "versions of a state that is made again begin at 0",
    "read error: read closes the connection": "an OSError of a read leaves the completion of a waiting fetch",
    "short read .index: read closes the connection": "an index takes what it was given for whole entries",
    "writes hang: leader keeps the leadership": "nothing measures how long a write takes",
}
