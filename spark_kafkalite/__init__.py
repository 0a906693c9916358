"""A partitioned, replayable log for Python and Spark people: a broker that speaks Kafka's wire protocol, and clients.

The public names are those of ``__all__``. They are loaded when they are first used: a broker process and a Spark worker
import this package too, and need only part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_kafkalite.version import VERSION

if TYPE_CHECKING:
    from spark_kafkalite.client.admin.admin import Admin as Admin
    from spark_kafkalite.client.consume.consumer import Consumer as Consumer
    from spark_kafkalite.client.produce.producer import Producer as Producer
    from spark_kafkalite.client.registry_consumer.streams import ConsumerConnector as ConsumerConnector
    from spark_kafkalite.client.registry_consumer.topic_filters import Blacklist as Blacklist
    from spark_kafkalite.client.registry_consumer.topic_filters import Whitelist as Whitelist
    from spark_kafkalite.model import Record as Record
    from spark_kafkalite.model import TopicPartition as TopicPartition

__version__ = VERSION

__all__ = [
    "Admin",
    "Blacklist",
    "Consumer",
    "ConsumerConnector",
    "Producer",
    "Record",
    "TopicPartition",
    "Whitelist",
    "__version__",
]

_MODULES = {
    "Admin": "spark_kafkalite.client.admin.admin",
    "Blacklist": "spark_kafkalite.client.registry_consumer.topic_filters",
    "ConsumerConnector": "spark_kafkalite.client.registry_consumer.streams",
    "Whitelist": "spark_kafkalite.client.registry_consumer.topic_filters",
    "Consumer": "spark_kafkalite.client.consume.consumer",
    "Producer": "spark_kafkalite.client.produce.producer",
    "Record": "spark_kafkalite.model",
    "TopicPartition": "spark_kafkalite.model",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
