"""Topic ids as text, in the form of Kafka's tools: URL-safe base64 without padding. Pure."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

_ID_BYTES: Final = 16


def topic_id_text(topic_id: bytes) -> str | None:
    """Return the text of a topic id, None for the id of a topic without one (zero bytes)."""
    # Source: org.apache.kafka.common.Uuid.toString.
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii") if any(topic_id) else None


def topic_id_of(text: object) -> bytes | None:
    """Return the topic id of a text that another program may have written, None if it is none."""
    try:
        topic_id = urlsafe_b64decode(f"{text}==")
    except (ValueError, binascii.Error):
        return None
    return topic_id if len(topic_id) == _ID_BYTES else None
