"""What kafka-python says of a login."""

from __future__ import annotations

import contextlib
from typing import Any


def asked_by_kafka_python(settings: dict[str, Any]) -> str | None:
    """Look for the topic ``sent``; return None, or the error."""
    import kafka  # not before: it warns
    import kafka.errors

    with contextlib.ExitStack() as stack:
        try:
            consumer = kafka.KafkaConsumer(**settings, bootstrap_timeout_ms=3000)
            stack.callback(consumer.close)
            assert "sent" in consumer.topics()
        except kafka.errors.KafkaError as error:
            return f"{type(error).__name__}: {error}"
    return None
