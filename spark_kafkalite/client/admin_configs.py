"""Administration of settings: of topics, of one broker, and of all brokers by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.client.admin_requests import AdminRequests
from spark_kafkalite.client.connection import DESCRIBE_CONFIGS
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.wire.error_codes import error_for
from spark_kafkalite.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
_SOURCES: Final = {
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default broker",
    4: "static broker",
    5: "default",
    6: "group",
}


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or broker. ``source`` says where the value comes from; ``value`` is None when secret."""

    name: str
    value: str | None
    source: str
    read_only: bool
    is_sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == "default"


class ConfigAdmin(AdminRequests):
    """The calls of an administrator that have to do with settings."""

    def describe_configs(
        self, *, topic: str | None = None, broker_id: int | None = None, timeout_ms: int | None = None
    ) -> dict[str, ConfigEntry]:
        """Return all settings of a topic, or of a broker, under their names."""
        if (topic is None) == (broker_id is None):
            raise ConfigError("describe_configs: give either topic or broker_id")
        deadline = self._deadline(timeout_ms)
        is_topic = topic is not None
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=TOPIC_RESOURCE if is_topic else BROKER_RESOURCE,
                    resource_name=topic if topic is not None else str(broker_id),
                    configuration_keys=None,
                )
            ],
            include_synonyms=False,
            include_documentation=True,
        )

        def ask() -> dict[str, ConfigEntry]:
            if broker_id is None:
                answer = self._cluster.request_any(DESCRIBE_CONFIGS, request, deadline)
            else:
                self._cluster.refresh([], deadline)
                answer = self._cluster.request_to(broker_id, DESCRIBE_CONFIGS, request, deadline)
            result = answer.results[0]
            if result.error_code:
                what = f"topic {topic}" if is_topic else f"broker {broker_id}"
                raise error_for(result.error_code, result.error_message or f"settings of {what} cannot be described")
            return {each.name: _config_entry(each) for each in result.configs}

        return self._retried(ask, deadline)  # type: ignore[no-any-return]


def _config_entry(received: Any) -> ConfigEntry:
    return ConfigEntry(
        received.name,
        received.value,
        _SOURCES.get(received.config_source, f"source {received.config_source}"),
        received.read_only,
        received.is_sensitive,
        received.documentation,
    )
