"""The values of the broker's settings, read from a properties file and overrides, and checked before the start.

``broker_settings.py`` declares the settings. Users may change those that are declared ``dynamic`` while brokers run.
``dynamic_config.py`` keeps the values in force.

An unknown name is an error, whose text names the nearest known one: a misspelt ``log.retention.ms`` must not delete
data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from spark_kafkalite.addresses import address_text, is_loopback
from spark_kafkalite.broker.authentication.sasl_listeners import SaslListener, sasl_listeners
from spark_kafkalite.broker.metrics.listener import MetricsListener
from spark_kafkalite.broker.network.listeners import Listener, check_part, parse_listeners
from spark_kafkalite.broker.settings.authorization_settings import super_users
from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.cluster_defaults import cluster_defaults
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.log.config_sources import (
    SOURCE_DEFAULT,
    SOURCE_DYNAMIC_BROKER,
    SOURCE_DYNAMIC_DEFAULT_BROKER,
    SOURCE_STATIC_BROKER,
    ConfigLayer,
    broker_defaults,
)
from spark_kafkalite.log.topic_config import BROKER_SYNONYMS, TopicConfig
from spark_kafkalite.redaction import shown_value
from spark_kafkalite.registry.served.listener import RegistryListener
from spark_kafkalite.registry.zookeeper_address import ZooKeeperAddress
from spark_kafkalite.settings import read_properties

# The settings of the embedded registry. A broker with zookeeper.connect does not have one.
_OWN_REGISTRY: Final = ("registry.dir", "registry.listener", "registry.listener.digest")


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """All settings of one broker, checked.

    ``values``: every setting. ``layers``: the sources of the given settings in order of precedence; the last two are
    the file with the command line, and the defaults of a cluster. ``topic_defaults``: every topic setting's default on
    this broker. ``zookeeper``: None if the registry is embedded in the broker. ``inner_listener``: the listener to
    which other brokers connect. ``without_effect``: the given settings of Apache Kafka that have no effect here.
    ``metrics_listener``: None if the broker serves no metrics, and counts nothing.
    """

    values: Mapping[str, Any]
    layers: tuple[ConfigLayer, ...]
    listeners: tuple[Listener, ...]
    log_dirs: tuple[Path, ...]
    registry_dir: Path
    registry_listener: RegistryListener | None
    zookeeper: ZooKeeperAddress | None
    inner_listener: Listener
    topic_defaults: Mapping[str, Any]
    without_effect: tuple[str, ...] = ()
    metrics_listener: MetricsListener | None = None

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        overrides: Mapping[str, object] | None = None,
        below: Mapping[str, object] | None = None,
    ) -> BrokerConfig:
        """Return the settings of a properties file (None: no file). ``overrides`` have precedence over it.

        The file has precedence over ``below``.

        Raises ConfigError, which names the setting, the value and the remedy.
        """
        properties: dict[str, object] = dict(below or {})
        if path is not None:
            properties |= read_properties(path)
        for name, value in (overrides or {}).items():
            # An override also replaces other spellings of the name: node.id replaces a broker.id of the file.
            if name in BROKER_SETTINGS:
                setting = BROKER_SETTINGS[name]
                for spelling in (setting.name, *setting.synonyms):
                    properties.pop(spelling, None)
            properties[name] = value
        return cls.from_properties(properties)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> BrokerConfig:
        """Return the settings in ``properties``, with defaults for all others. Raises ConfigError."""
        given = BROKER_SETTINGS.parse(properties)
        values = BROKER_SETTINGS.defaults() | given
        log_dirs = tuple(Path(directory) for directory in values["log.dirs"])
        if not log_dirs:
            raise ConfigError("log.dirs is empty: name at least one directory")
        if len({directory.absolute() for directory in log_dirs}) != len(log_dirs):
            raise ConfigError(f"log.dirs={','.join(map(str, log_dirs))}: a directory is named twice")
        listeners = parse_listeners(
            values["listeners"], values["advertised.listeners"], values["listener.security.protocol.map"], values
        )
        registry_dir = Path(values["registry.dir"]) if values["registry.dir"] else log_dirs[0] / "_registry"
        zookeeper = ZooKeeperAddress.of(values)
        if zookeeper is not None:
            _check_no_own_registry(given, zookeeper)
        defaults = cluster_defaults(is_clustered=zookeeper is not None, has_three=False)
        layers = (ConfigLayer(SOURCE_STATIC_BROKER, given), ConfigLayer(SOURCE_DEFAULT, defaults))
        values, topic_defaults = _in_force(layers)
        registry_listener = None
        if values["registry.listener"]:
            registry_listener = RegistryListener.parse(
                values["registry.listener"], digest=values["registry.listener.digest"] or None
            )
        config = cls(
            values,
            layers,
            listeners,
            log_dirs,
            registry_dir,
            registry_listener,
            zookeeper,
            _inner_listener(values, listeners),
            topic_defaults,
            tuple(name for name in properties if name in BROKER_SETTINGS.without_effect),
            MetricsListener.of(values),
        )
        config.check()
        return config

    def with_dynamic(self, own: Mapping[str, Any], by_default: Mapping[str, Any]) -> BrokerConfig:
        """Return the settings with dynamic values over the static ones; all values are parsed.

        ``own``: the dynamic values of this broker. ``by_default``: those of all brokers. They replace the present
        dynamic values.
        """
        return self._with_layers(
            ConfigLayer(SOURCE_DYNAMIC_BROKER, own),
            ConfigLayer(SOURCE_DYNAMIC_DEFAULT_BROKER, by_default),
            *self.layers[-2:],
        )

    @property
    def given(self) -> Mapping[str, Any]:
        """The parsed values of the file and the command line."""
        return self.layers[-2].values

    def with_given(self, given: Mapping[str, Any]) -> BrokerConfig:
        """Return the settings with new values of the file and the command line. Only dynamic settings may differ."""
        return self._with_layers(*self.layers[:-2], ConfigLayer(SOURCE_STATIC_BROKER, given), self.layers[-1])

    def in_cluster_of_three(self) -> BrokerConfig:
        """Return the settings with the defaults of a cluster that has or had three brokers."""
        defaults = cluster_defaults(is_clustered=self.zookeeper is not None, has_three=True)
        return self._with_layers(*self.layers[:-1], ConfigLayer(SOURCE_DEFAULT, defaults))

    def _with_layers(self, *layers: ConfigLayer) -> BrokerConfig:
        values, topic_defaults = _in_force(layers)
        return replace(self, values=values, layers=layers, topic_defaults=topic_defaults)

    def check(self) -> None:
        """Raise ConfigError if settings contradict each other."""
        TopicConfig.from_properties({}, self.topic_defaults)
        shortest, longest = self["group.min.session.timeout.ms"], self["group.max.session.timeout.ms"]
        if shortest > longest:
            raise ConfigError(
                f"group.min.session.timeout.ms={shortest}: must be at most group.max.session.timeout.ms={longest}"
            )
        self.check_parts(self.given)
        self._check_secret()
        _ = self.sasl_listeners, super_users(self.values)

    def check_parts(self, settings: Iterable[str]) -> None:
        """Raise ConfigError if one of these settings is for a listener, or a mechanism of one, that does not exist."""
        names = [listener.name for listener in self.listeners]
        for name in settings:
            if (part := BROKER_SETTINGS.part_of(name)) is not None:
                check_part(name, part, names)

    def _check_secret(self) -> None:
        """Raise ConfigError for a broker of a cluster that is reachable from other hosts without a cluster secret."""
        if self.zookeeper is None or self.zookeeper.auth is not None or self["inter.broker.secret.file"] is not None:
            return
        for listener in self.listeners:
            if not is_loopback(listener.host, "listeners"):
                raise ConfigError(
                    f"listeners={listener.name}://{address_text(listener.host, listener.port)} is open to other hosts, "
                    "and nothing distinguishes the brokers of this cluster from other programs. Set "
                    "inter.broker.secret.file to a file with a secret that all of them have (kafkalite cluster "
                    "new-secret prints one), or zookeeper.digest=USER:PASSWORD to keep the secret in the registry"
                )

    @property
    def sasl_listeners(self) -> Mapping[str, SaslListener]:
        """How clients authenticate, by the name of each listener with SASL for clients. Raises ConfigError."""
        alone = self.inner_listener.name if self.inner_listener_is_for_brokers_alone else None
        return sasl_listeners(self.listeners, alone)

    @property
    def inner_listener_is_for_brokers_alone(self) -> bool:
        """Whether only brokers use the inner listener: it is named, and there are other listeners for clients."""
        names = self["inter.broker.listener.name"], self["security.inter.broker.protocol"]
        return self.zookeeper is not None and any(names) and len(self.listeners) > 1

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def broker_id(self) -> int:
        """This broker's id."""
        return int(self.values["broker.id"])

    @property
    def rack(self) -> str | None:
        """This broker's rack, None if it has none."""
        rack: str | None = self.values["broker.rack"]
        return rack


def _check_no_own_registry(given: Mapping[str, Any], zookeeper: ZooKeeperAddress) -> None:
    for name in _OWN_REGISTRY:
        if name in given:
            raise ConfigError(
                f"{name}={shown_value(name, given[name])}: with zookeeper.connect={zookeeper.connect} this broker has "
                f"no registry of its own; leave {name} out"
            )


def _inner_listener(values: Mapping[str, Any], listeners: Sequence[Listener]) -> Listener:
    """Return the listener to which other brokers connect. Raises ConfigError if there is none of that name.

    Source: kafka.server.KafkaConfig.getInterBrokerListenerNameAndSecurityProtocol; there the protocol
    PLAINTEXT is the default, here the first listener is.
    """
    setting, other = "inter.broker.listener.name", "security.inter.broker.protocol"
    if values[setting] is None:
        if values[other] is None:
            return listeners[0]
        setting = other
    elif values[other] is not None:
        raise ConfigError(f"{setting}={values[setting]} and {other}={values[other]}: give one of them")
    name = values[setting]
    for listener in listeners:
        if listener.name == name.upper():
            return listener
    names = ", ".join(listener.name for listener in listeners)
    alike = [listener.name for listener in listeners if setting == other and listener.protocol.value == name]
    remedy = f"; set inter.broker.listener.name={alike[0]} instead" if alike else ""
    raise ConfigError(f"{setting}={name}: not one of listeners ({names}){remedy}")


def _in_force(layers: Sequence[ConfigLayer]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (every setting's value, every topic setting's default)."""
    values = BROKER_SETTINGS.defaults()
    for layer in reversed(layers):
        values |= layer.values
    topic_defaults = broker_defaults(layers)
    for topic_setting, (first, *_) in BROKER_SYNONYMS.items():
        # Also if the value comes from another name or a default: the shown value is the one in force.
        values[first.name] = topic_defaults[topic_setting]
    return values, topic_defaults
