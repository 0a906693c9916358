"""Gets the cluster secret, and replaces it when it changes. Brokers authenticate to each other by this secret.

The secret has one of three sources:

- A file, which ``inter.broker.secret.file`` names.
- A node of the registry, for brokers that authenticate to it (``zookeeper.digest``). Only that identity can read the
  node. The first broker creates the secret.
- A node that all clients of the registry can read, for brokers without both settings whose listeners are all on
  loopback. This secret distinguishes brokers from clients, but does not protect against an attacker.

Any other broker of a cluster does not start (``BrokerConfig.check``).

Before a broker registers itself, it authenticates to another broker. With a wrong secret it could be elected, and no
broker could follow it. It starts when one broker accepts it, or when none answers.

The broker checks the file or the node every few seconds. If it is unreadable or not a secret, the broker logs that and
keeps the present secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from spark_kafkalite.broker.network.inner_wire import InnerWire
from spark_kafkalite.broker.network.peers import Peers
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.errors import ConfigError, KafkaliteError, RegistryError, SaslAuthenticationFailed
from spark_kafkalite.net.io_threads import IoThreads, Lane
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry import znodes
from spark_kafkalite.registry.cluster.cluster_state import BrokerInfo
from spark_kafkalite.registry.guarded_nodes import guard_parents
from spark_kafkalite.registry.store import NodeExists, NoNode, Store, answer
from spark_kafkalite.security.cluster_secret import LONGEST_SECRET_TEXT, ClusterSecret, new_secret, parse_secrets
from spark_kafkalite.security.tokens import open_at_once
from spark_kafkalite.wire.messages.metadata import MetadataRequest

logger = logging.getLogger(__name__)
_quiet = QuietLog(logger)

_FILE: Final = "inter.broker.secret.file"
_LOOK_S: Final = 5.0
# How long one broker, and all of them together, may take to accept or refuse the secret.
_ANSWER_S: Final = 1.0
_ANSWERS_S: Final = 2.0
_METADATA_VERSION: Final = 12


class SecretKeeper:
    """Passes the secret to the inner wire, at the start and after each change."""

    def __init__(self, config: BrokerConfig, inner_wire: InnerWire, io: IoThreads, store: Callable[[], Store]) -> None:
        """``store`` returns the present session with the registry, and raises RegistryError while there is none."""
        self._path: str | None = config[_FILE]
        self._is_private = config.zookeeper is not None and config.zookeeper.auth is not None
        self._inner_wire = inner_wire
        self._io = io
        self._store = store
        self._keeping: asyncio.Task[None] | None = None
        # The file's identity, size and times when it was last read.
        self._seen: object = None

    async def start(self) -> None:
        """Get the secret, and start to check for changes. Raises ConfigError, RegistryError."""
        if self._path is not None:
            self._warn_of_readers(self._path)
            text, self._seen = await self._io.run(partial(_read_if_other, self._path, None), Lane.FILES)
        else:
            text = await self._from_registry()
            if not self._is_private:
                logger.warning(
                    "brokers authenticate by a secret that all clients of the registry can read (%s): that is meant "
                    "for one host; %s=FILE, or zookeeper.digest, keeps it secret",
                    znodes.INTER_BROKER_SECRET,
                    _FILE,
                )
        assert text is not None
        self._inner_wire.set_secret(ClusterSecret(parse_secrets(text, self._source)))
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def check_accepted(self, peers: Peers, others: Iterable[BrokerInfo]) -> None:
        """Authenticate to another broker of the cluster.

        Raises ConfigError if brokers refuse the secret and none accepts it. Brokers without an answer do not count. If
        no handshake of TLS succeeds, it logs a warning only: the certificates of the others may have expired, and this
        broker may be the first with a new one.
        """
        refusal: SaslAuthenticationFailed | None = None
        tls_problem: KafkaliteError | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWERS_S):
                for other in others:
                    try:
                        await peers.ask(other, MetadataRequest(topics=[]), _METADATA_VERSION, timeout_s=_ANSWER_S)
                        return
                    except SaslAuthenticationFailed as error:
                        refusal = error
                    except (KafkaliteError, TimeoutError) as error:
                        cause = error.__cause__
                        if isinstance(error, KafkaliteError) and isinstance(cause, OSError):
                            tls_problem = error if cause.errno == errno.EPROTO else tls_problem
                        logger.debug("broker %d does not answer about the secret: %s", other.broker_id, error)
        if refusal is not None:
            raise ConfigError(
                f"this broker does not start, because it has another cluster secret (from {self._source}) than the "
                f"registered brokers: {refusal}"
            )
        if tls_problem is not None:
            logger.warning(
                "this broker can copy nothing from other brokers: %s; the certificate of each broker has to be from an "
                "authority in the trust stores of all (ssl.keystore.location, ssl.truststore.location)",
                tls_problem,
            )

    def stop(self) -> None:
        """Stop checking for changes."""
        if self._keeping is not None:
            self._keeping.cancel()

    @property
    def _source(self) -> str:
        return f"registry node {znodes.INTER_BROKER_SECRET}" if self._path is None else f"{_FILE}={self._path}"

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._look()
            except KafkaliteError as error:
                _quiet.log(logging.ERROR, "look", "the cluster secret stays as it was: %s", error)
            except Exception:
                _quiet.log(logging.ERROR, "look", "the cluster secret stays as it was", exc_info=True)

    async def _look(self) -> None:
        """Use a new secret, if there is one."""
        if self._path is not None:
            text, seen = await self._io.run(partial(_read_if_other, self._path, self._seen), Lane.FILES)
            self._seen = seen
        else:
            try:
                data, _ = await answer(self._store().get(znodes.INTER_BROKER_SECRET))
            except RegistryError:
                # There is no session at present, or the node was deleted. The next broker that starts creates it again.
                return
            text = _text(data)
        if text is None:
            return
        secret = ClusterSecret(parse_secrets(text, self._source))
        if secret != self._inner_wire.secret:
            self._inner_wire.set_secret(secret)
            logger.info("a new cluster secret is in force, from %s", self._source)

    async def _from_registry(self) -> str:
        store, path = self._store(), znodes.INTER_BROKER_SECRET
        try:
            if self._is_private:
                await guard_parents(store)
            try:
                data, _ = await answer(store.get(path))
            except NoNode:
                with contextlib.suppress(NodeExists):
                    made = new_secret().encode()
                    await answer(store.create(path, made, private=self._is_private, make_parents=True))
                data, _ = await answer(store.get(path))
        except RegistryError as error:
            raise RegistryError(
                f"the cluster secret in the registry ({path}) cannot be had: {error}; all brokers need the same "
                f"zookeeper.digest, or a secret file ({_FILE})"
            ) from error
        return _text(data)

    def _warn_of_readers(self, path: str) -> None:
        with contextlib.suppress(OSError):
            if stat.S_IMODE(os.stat(path).st_mode) & 0o077:
                logger.warning(
                    "%s=%s: others can read this file, which holds a secret; chmod 600 %s", _FILE, path, path
                )


def check_secret_file(config: BrokerConfig) -> None:
    """Raise ConfigError if the configured secret file is unreadable or contains no secret."""
    path: str | None = config[_FILE]
    if path is not None:
        text, _ = _read_if_other(path, None)
        parse_secrets(text or "", f"{_FILE}={path}")


def _text(data: bytes) -> str:
    # Bytes that are not UTF-8 are not a secret. The later error does not show them.
    return data.decode("utf-8", "replace")


def _read_if_other(path: str, seen: object) -> tuple[str | None, object]:
    """Return a file's text, or None if the file has not changed since ``seen``, and its identity, size and times.

    Raises ConfigError.
    """
    try:
        with open(path, "rb", opener=open_at_once) as file:
            found = os.fstat(file.fileno())
            like = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if like == seen:
                return None, seen
            content = file.read(LONGEST_SECRET_TEXT + 1) or b""
    except OSError as error:
        raise ConfigError(f"{_FILE}={path}: cannot be read: {error.strerror}") from None
    if len(content) > LONGEST_SECRET_TEXT:
        raise ConfigError(f"{_FILE}={path}: holds more than {LONGEST_SECRET_TEXT} bytes, which no secret does")
    return _text(content), like
