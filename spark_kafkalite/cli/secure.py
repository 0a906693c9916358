"""What ``--secure DIR`` does before a broker starts: certificates, the first user, and files for clients."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spark_kafkalite.addresses import address_text
from spark_kafkalite.broker.authentication.first_user import ensure_user
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.cli.output import said, warn
from spark_kafkalite.errors import ConfigError
from spark_kafkalite.registry.store import Store
from spark_kafkalite.security.secure_directory import MECHANISM, USER, SecureDirectory

_LISTENERS: Final = "SASL_SSL://127.0.0.1:9092"


def secured(directory: Path, path: Path | None, overrides: Mapping[str, object]) -> dict[str, object]:
    """Prepare a directory for a broker with these settings; return the settings that stand below them.

    Raises ConfigError, and RegistryError if the user cannot be added.
    """
    below: dict[str, object] = {"listeners": _LISTENERS, "sasl.enabled.mechanisms": MECHANISM}
    config = BrokerConfig.load(path, overrides, below)
    made = SecureDirectory(directory)
    for listener in config.listeners:
        if listener.protocol is not made.protocol:
            raise ConfigError(
                f"--secure {directory}: listener {listener.name} has the protocol {listener.protocol.value}, which is "
                f"open; give listeners with {made.protocol.value} only, such as --override listeners={_LISTENERS}"
            )
    if config.registry_listener is not None and config.registry_listener.digest is None:
        raise ConfigError(
            f"--secure {directory}: registry.listener is open: all that reach it can change topics and settings; set "
            "registry.listener.digest=USER:PASSWORD in the file of --config"
        )
    for each in config.log_dirs:
        # What is in the logs is not encrypted.
        with contextlib.suppress(OSError):  # the broker reports it
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
    hosts = [listener.advertised_host for listener in config.listeners]
    below |= made.broker_settings(f"broker-{config.broker_id}", hosts)
    store = _registry(config)
    try:
        fits = ensure_user(store, USER, MECHANISM, made.password)
    finally:
        store.close()
    first = config.listeners[0]
    port = first.advertised_port
    tell_of_files(made, address_text(first.advertised_host, port) if port else None)
    if not fits:
        warn(
            f"user {USER!r} has another password than {made.password_file}, so the files for clients do not work; "
            "write its password into that file and start the broker again. The other brokers of a cluster need copies "
            "of ca.pem, ca-key.pem and admin.password of the first one"
        )
    return below


def tell_of_files(made: SecureDirectory, bootstrap: str | None) -> None:
    """Write the settings of clients, and print where they are."""
    ours, librdkafka, spark = made.write_client_files(bootstrap)
    said(f"secured by {made.path}: clients authenticate as {USER}, by {made.sasl}; the settings of clients are in")
    address = f"--bootstrap-server {bootstrap} " if bootstrap is not None else ""
    said(f"  {ours} (commands, also Java's: {address}--command-config FILE; Java's clients, Producer, Consumer)")
    said(f"  {librdkafka} (confluent-kafka; kcat -F FILE)")
    said(f'  {spark} (Spark: spark.read.format("kafkalite").options(**json.load(open(FILE))))')


def _registry(config: BrokerConfig) -> Store:
    """Return a session with the broker's registry."""
    if config.zookeeper is None:
        from spark_kafkalite.registry.tree.embedded_store import open_embedded

        config.registry_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open_embedded(config.registry_dir)
    from spark_kafkalite.registry.zookeeper import open_zookeeper

    return open_zookeeper(config.zookeeper.connect, auth=config.zookeeper.auth)
