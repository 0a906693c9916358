"""Declares the settings of quotas, and of how many connections may be opened in a second."""

from __future__ import annotations

from typing import Final

from spark_kafkalite.settings import Setting

# Of the broker, and of each listener.
CONNECTION_RATE: Final = "max.connection.creation.rate"

QUOTA_SETTINGS: Final = (
    Setting(
        "quota.window.num",
        "int",
        11,
        "How much of its quota a client may save up: what it has not used in a fifth of so many windows, less one, of "
        "quota.window.size.seconds, it may use at once.",
        minimum=1,
        maximum=10_000,
    ),
    Setting(
        "quota.window.size.seconds",
        "int",
        1,
        "Length of a window of quotas. A client that comes for the first time may use the allowance of one window at "
        "once. It is also the longest pause for request_percentage.",
        unit="seconds",
        minimum=1,
        maximum=3600,
    ),
    Setting(
        CONNECTION_RATE,
        "int",
        2**31 - 1,
        "Connections that clients may open in a second; further ones wait in the kernel, up to a second at a time. "
        "Those at a listener that is for brokers alone are not counted. A listener may have a rate of its own: "
        "listener.name.NAME.max.connection.creation.rate.",
        unit="connections per second",
        minimum=1,
        dynamic=True,
    ),
)

_CONTROLLER: Final = "the creation and deletion of topics has no quota"
QUOTAS_WITHOUT_EFFECT: Final = {
    "controller.quota.window.num": _CONTROLLER,
    "controller.quota.window.size.seconds": _CONTROLLER,
}
