"""Declares the settings of the controller's balance of leaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_kafkalite.registry.controller.preferred_leaders import LeaderBalance
from spark_kafkalite.settings import Setting

LEADER_SETTINGS: Final = (
    Setting(
        "auto.leader.rebalance.enable",
        "boolean",
        True,
        "Whether the controller has preferred replicas lead again by itself: the first replica of a partition, where "
        "it is in sync.",
    ),
    Setting(
        "leader.imbalance.check.interval.seconds",
        "long",
        300,
        "How often the controller looks for brokers that do not lead what they should; the first time after this long "
        "in the role.",
        unit="s",
        minimum=1,
    ),
    Setting(
        "leader.imbalance.per.broker.percentage",
        "int",
        10,
        "Percentage of the partitions whose preferred replica a broker is, of which others may be the leaders. Above "
        "it the broker leads again what it can.",
        unit="percent",
        minimum=0,
        maximum=100,
    ),
)


def leader_balance(values: Mapping[str, Any]) -> LeaderBalance | None:
    """Return how the controller balances leaders under these settings of a broker, None where it does not."""
    if not values["auto.leader.rebalance.enable"]:
        return None
    return LeaderBalance(
        float(values["leader.imbalance.check.interval.seconds"]), values["leader.imbalance.per.broker.percentage"]
    )
