"""The settings ``metrics.*``: the address of the metrics, and the token that readers need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_kafkalite.errors import ConfigError
from spark_kafkalite.exposition.access import AccessNames, PageAccess

_NAMES: Final = AccessNames("metrics.listener", "metrics.token.file", "metrics.listener.insecure=true")


@dataclass(frozen=True, slots=True)
class MetricsListener:
    """A checked address, and the bound on series of a page."""

    access: PageAccess
    max_series: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> MetricsListener | None:
        """Return the listener that a broker's settings name, None without one. Raises ConfigError."""
        address: str | None = values[_NAMES.address]
        token_file: str | None = values[_NAMES.token_file]
        if not address:
            if token_file is not None:
                raise ConfigError(
                    f"{_NAMES.token_file}={token_file}: has no effect without metrics.listener; set that, too"
                )
            return None
        insecure: bool = values["metrics.listener.insecure"]
        return cls(PageAccess.of(address, token_file, insecure=insecure, names=_NAMES), values["metrics.max.series"])
