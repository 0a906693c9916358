"""What aiokafka says of a login."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
from aiokafka.helpers import create_ssl_context


def sent_by_aiokafka(settings: dict[str, Any]) -> str | None:
    """Produce a record to the topic ``sent``; return None, or the error. ``ssl_cafile`` is as in kafka-python."""
    given = dict(settings)
    if (authority := given.pop("ssl_cafile", None)) is not None:
        given["ssl_context"] = create_ssl_context(cafile=authority)

    async def run() -> str | None:
        producer = aiokafka.AIOKafkaProducer(**given)
        try:
            await producer.start()
            await producer.send_and_wait("sent", b"x")
        except aiokafka.errors.KafkaError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            await producer.stop()
            await _close_connections()
        return None

    return asyncio.run(run())


async def _close_connections() -> None:
    """Close the connections that aiokafka leaves to the garbage collector: those of logins that have failed."""
    loop: Any = asyncio.get_running_loop()
    for transport in list(loop._transports.values()):
        transport.abort()
    # Each is closed in the next pass of the loop.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
