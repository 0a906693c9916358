"""Records which error codes answer a client without rights: ours, and Apache Kafka's.

``python -m tests.interop.security.recorded_refusals`` starts an Apache Kafka and writes
``tests/golden/security/refusals.json``.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from spark_kafkalite.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.interop.security.asked_rights import ASKED, allow, codes, forbid_all, login, plain
from tests.interop.support.raw_client import RawClient
from tests.lab.apache_kafka import ApacheKafka
from tests.paths import PROJECT
from tests.patience import wait_until

GOLDEN: Final = PROJECT / "tests" / "golden" / "security" / "refusals.json"
PRESENT, ABSENT = "present", "missing"
USERS = " ".join(f'user_{name}="{name}-secret"' for name in ("admin", "alice", "bob"))
_LISTENER = "CLIENTS"
_APACHE_PAUSE_S = 0.3
_OVERRIDES = {
    "sasl.enabled.mechanisms": "PLAIN",
    f"listener.name.{_LISTENER.lower()}.plain.sasl.jaas.config": (
        f"org.apache.kafka.common.security.plain.PlainLoginModule required {USERS};"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}


Recorded = dict[str, dict[str, list[int]]]


def record(bootstrap: str, pause_s: float = 0.0) -> Recorded:
    """Return all error codes in the answer to each request of the table, by what is missing and the topic or group.

    ``pause_s`` is the time that the broker needs to obey a change: Apache Kafka's follows its controller, ours has
    obeyed before it answers.
    """
    found: Recorded = {}
    with login(bootstrap, "admin") as admin, login(bootstrap, "alice") as alice:
        _make_present(admin)
        forbid_all(admin, "alice")
        for asked in ASKED:
            cases = found[asked.label] = {}
            missing_rights: list[Any] = [None, *asked.rights]
            for missing in missing_rights:
                for name in (PRESENT, ABSENT):
                    others = [right[:2] for right in asked.rights if missing is not None and right != missing]
                    if others:
                        allow(admin, "alice", *others, name=name)
                        time.sleep(pause_s)
                    what = "all" if missing is None else f"{missing[0].name} on {missing[1].name}"
                    answer = plain(alice.call(asked.request(name), asked.version), name)
                    cases[f"without {what}: {name}"] = sorted(codes(answer))
                    if others:
                        forbid_all(admin, "alice")
                        time.sleep(pause_s)
    return found


def _make_present(admin: RawClient) -> None:
    topics = [CreatableTopic(name=PRESENT, num_partitions=1, replication_factor=1)]
    admin.call(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    by_label = {asked.label: asked for asked in ASKED}

    def is_committed() -> bool:
        for label in ("FindCoordinator", "OffsetCommit"):
            asked = by_label[label]
            answer = plain(admin.call(asked.request(PRESENT), asked.version), PRESENT)
        return set(codes(answer)) == {0}

    wait_until(is_committed, "the group to have an offset")


def record_apache(directory: Path) -> Recorded:
    """Return the same of an Apache Kafka."""
    kafka = ApacheKafka(directory, overrides=_OVERRIDES, further_listeners={_LISTENER: "SASL_PLAINTEXT"})
    with kafka:
        return record(kafka.address(_LISTENER), _APACHE_PAUSE_S)


def main() -> None:
    """Write the golden file."""
    with tempfile.TemporaryDirectory() as directory:
        found = record_apache(Path(directory))
    GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
