"""Commit, then process: after a crash no record is processed again; those between commit and crash are left out."""

import sys

from spark_kafkalite import Consumer
from spark_kafkalite.errors import IllegalGeneration, RebalanceInProgress, UnknownMemberId


def main(bootstrap: str, group: str, instance: str, topic: str, results: str) -> None:
    with (
        Consumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance,  # a restarted process gets its partitions back at once
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer,
        open(results, "ab", buffering=0) as out,
    ):
        consumer.subscribe([topic])
        while True:
            records = consumer.poll(1_000)
            if not records:
                continue
            try:
                consumer.commit()
            except (IllegalGeneration, RebalanceInProgress, UnknownMemberId):
                continue  # the group has rebalanced: the member that has the partitions now processes these records
            for record in records:
                out.write(b"%s\n" % record.value)  # whatever your program does


if __name__ == "__main__":
    main(*sys.argv[1:])
