"""Histories written by hand, by the rules' modules: each is a change to one sound history.

The bugs that a broker may have are among them, by what its clients would have seen: acknowledged before replication,
truncated to the high watermark, the lease skipped, an fsync dropped, a wrong CRC accepted, a bounced replica trusted,
an old epoch's wait answered, raised before truncated.
"""

from tests.chaos.written import brokers, groups, logs, readers, writes
from tests.chaos.written.stories import WRITTEN

__all__ = ["WRITTEN", "brokers", "groups", "logs", "readers", "writes"]
