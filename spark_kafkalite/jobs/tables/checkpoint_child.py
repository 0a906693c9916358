"""Writes the checkpoint of one table: ``python -m ...checkpoint_child URI``, with Hadoop's settings as JSON on stdin.

A process of its own, because opening a table on HDFS may hang for good (deltalake 1.6.6), and no signal ends that from
within. It also deletes the commits that are older than the table's ``delta.logRetentionDuration``, 30 days by default.
It prints the version of the checkpoint.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Write the checkpoint. Raises what deltalake raises."""
    from deltalake import DeltaTable

    table = DeltaTable(sys.argv[1], storage_options=json.load(sys.stdin))
    table.create_checkpoint()
    table.cleanup_metadata()
    print(table.version())


if __name__ == "__main__":
    main()
