"""The SASL mechanisms of each listener, as the broker's settings name them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from spark_kafkalite.broker.network.listeners import LISTENER_PREFIX, Listener
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.security.sasl_server import PLAIN, plain_passwords
from spark_kafkalite.security.scram import SCRAM_HASHES

_ENABLED: Final = "sasl.enabled.mechanisms"
_JAAS: Final = "sasl.jaas.config"
_LIFETIME: Final = "connections.max.reauth.ms"


@dataclass(frozen=True, slots=True)
class SaslListener:
    """How the clients of one listener authenticate."""

    mechanisms: tuple[str, ...]
    # By mechanism, in milliseconds; 0: a session lasts as long as its connection.
    lifetimes_ms: Mapping[str, int]
    # The users of PLAIN; empty without that mechanism.
    passwords: Mapping[str, bytes]
    # Settings of the listener that change nothing here.
    without_effect: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"SaslListener({', '.join(self.mechanisms)})"

    @classmethod
    def of(cls, listener: Listener) -> SaslListener:
        """Return the mechanisms and users in the settings of a listener with SASL. Raises ConfigError."""
        mechanisms: tuple[str, ...] = listener.setting(_ENABLED) or ()
        own = f"{LISTENER_PREFIX}{listener.name.lower()}."
        if not mechanisms:
            raise ConfigError(
                f"listener {listener.name} has the security protocol {listener.protocol.value} and no SASL mechanism, "
                f"so no client could authenticate; set {own}{_ENABLED}, for example to SCRAM-SHA-512"
            )
        passwords: Mapping[str, bytes] = {}
        if PLAIN in mechanisms:
            setting = f"{own}{PLAIN.lower()}.{_JAAS}"
            jaas = listener.setting(_JAAS, PLAIN)
            if jaas is None:
                raise ConfigError(
                    f"{setting} is not set, and PLAIN is one of {_ENABLED} of listener {listener.name}; set it to "
                    'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";'
                )
            passwords = plain_passwords(jaas, setting)
        lifetimes_ms = {mechanism: int(listener.setting(_LIFETIME, mechanism) or 0) for mechanism in mechanisms}
        scram = (f"{own}{mechanism.lower()}.{_JAAS}" for mechanism in SCRAM_HASHES)
        return cls(mechanisms, lifetimes_ms, passwords, tuple(name for name in scram if name in listener.settings))

    def warnings(self, name: str, *, has_scram_users: bool, remedy: str) -> list[str]:
        """Return what an operator should know at the start; ``name`` is the listener's, ``remedy`` adds a user."""
        found = [
            f"{each} has no effect: the users of SCRAM are in the registry (kafkalite users), and brokers authenticate "
            "to each other by the cluster secret"
            for each in self.without_effect
        ]
        if not self.passwords and not has_scram_users:
            found.append(
                f"no client can authenticate on listener {name}: there is no user of {', '.join(self.mechanisms)}; add "
                f"the first one: {remedy}"
            )
        return found


def sasl_listeners(listeners: Iterable[Listener], brokers_alone: str | None) -> dict[str, SaslListener]:
    """Return how clients authenticate, by the name of the listener; no entry for a listener without SASL.

    ``brokers_alone`` is the name of the listener that serves only brokers, if there is one: it needs no mechanism.
    Raises ConfigError.
    """
    return {
        listener.name: SaslListener.of(listener)
        for listener in listeners
        if listener.protocol.uses_sasl and listener.name != brokers_alone
    }
