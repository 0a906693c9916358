"""The broker as a process: its start (``start``), its stop, its signals, its exit code.

SIGTERM and SIGINT stop the broker, with exit code 0. If it is still starting, it undoes the finished phases in reverse
order, as after a failed start. A stop has these steps:

1. With ``controlled.shutdown.enable`` the broker hands its leaderships over.
2. It accepts no more connections and requests.
3. It cancels waiting handlers and answers waiting Fetch and Produce requests.
4. It closes the connections and ends its threads.
5. It gives up the role of the controller and its registration.
6. It flushes and closes the logs and writes the clean-shutdown markers.
7. It closes the registry.

At SIGHUP the broker reads its properties file and its certificates again, and applies the dynamic settings. A broker at
a terminal stops instead, because SIGHUP means that the terminal was closed. At SIGUSR1 the broker logs the stacks of
all threads and tasks (``stacks``).

If a broker loses its session with a shared registry, it continues without leading anything until it has a new session
(``registry.cluster.membership``). The embedded registry can fail only with its disk. Then the broker stops with exit
code 1, because without the registry it may not lead. It also stops when its last log directory fails, as Kafka does:
otherwise it would only refuse requests, and clients would repeat them. The broker writes nothing to failed directories,
so their next start recovers them as after a crash. The stop does not wait for calls that hang on such a disk: the
process ends after some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final

from spark_kafkalite import early_signals
from spark_kafkalite.broker.event_log import configure_logging
from spark_kafkalite.broker.hung_disks import StopWatch, hang_limit_s
from spark_kafkalite.broker.settings.broker_settings import BROKER_SETTINGS
from spark_kafkalite.broker.settings.config import BrokerConfig
from spark_kafkalite.broker.shared_registry import SharedRegistry
from spark_kafkalite.broker.stacks import log_stacks_at_sigusr1
from spark_kafkalite.broker.start import BrokerStart
from spark_kafkalite.c_memory import Option, set_option
from spark_kafkalite.clock import SYSTEM_CLOCK, Clock
from spark_kafkalite.errors import ConfigError, KafkaliteError, KafkaStorageError, RegistryError
from spark_kafkalite.log.files.fs import Fs
from spark_kafkalite.log.files.os_fs import OsFs
from spark_kafkalite.log.loading.loader import LoadInterrupted
from spark_kafkalite.net import event_loop
from spark_kafkalite.registry.cluster.membership import OpenStore
from spark_kafkalite.registry.node_json import MalformedNode
from spark_kafkalite.version import VERSION

logger = logging.getLogger(__name__)

# How long a stop without any log directory may take: a thread may hang in a call to a dead disk.
_STOP_WITHOUT_DISKS_S = 3.0

# One is the main thread's.
_ARENAS: Final = 2


class Broker:
    """One broker in this process, around one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock = SYSTEM_CLOCK,
        fs: Fs | None = None,
        open_store: OpenStore | None = None,
        read_config: Callable[[], BrokerConfig] | None = None,
    ) -> None:
        """``read_config`` reads the settings again and may raise ConfigError; None if no file contains them.

        ``open_store`` opens sessions with a shared registry, by default with that in ``zookeeper.connect``. Without
        both the broker has an embedded registry.
        """
        self.config = config
        if open_store is None and config.zookeeper is not None:
            open_store = SharedRegistry(config.zookeeper).open_session
        self._read_config = read_config
        self._is_at_terminal = early_signals.stdin_is_controlling_terminal()
        self._fs = fs if fs is not None else OsFs()
        self._stop_wanted: asyncio.Event
        self._exit_code = 0
        # Ends the process when a stop without disks takes too long.
        self._halt = threading.Timer(_STOP_WITHOUT_DISKS_S, os._exit, (1,))
        self._halt.daemon = True
        # Runs in reverse order, also after a start that fails half-way.
        self._undo = contextlib.AsyncExitStack()
        self._undo.callback(self._halt.cancel)
        self._start = BrokerStart(
            config,
            clock,
            self._fs,
            open_store,
            self._undo,
            on_registry_lost=self._registry_lost,
            on_disks_lost=self._disks_lost,
        )

    async def run(self, on_ready: Callable[[str], None]) -> int:
        """Start, serve until a stop, and stop; return the exit code. ``on_ready`` receives the ready line or lines.

        Raises ConfigError, RegistryError and KafkaStorageError when the start fails.
        """
        # Imported modules are never garbage.
        gc.freeze()
        loop = asyncio.get_running_loop()
        self._stop_wanted = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        early_signals.let_through()
        watch = StopWatch(self._fs.calls, hang_limit_s(self.config["zookeeper.session.timeout.ms"]))
        self._undo.callback(watch.stop)
        async with self._undo:
            if not await self._start_unless_stopped(loop):
                return self._exit_code
            if not self._stop_wanted.is_set():
                on_ready(self._ready_text())
            await self._stop_wanted.wait()
            logger.info("broker %d stops", self.config.broker_id)
            watch.start()
        return self._exit_code

    async def _start_unless_stopped(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Start; return whether the start has completed. A stop cancels the start."""
        starting = loop.create_task(self._start.run(loop))
        stopping = loop.create_task(self._stop_wanted.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
        try:
            await starting
        except LoadInterrupted as error:
            logger.info("broker %d stops: %s; the next start recovers its logs again", self.config.broker_id, error)
            return False
        except asyncio.CancelledError:
            logger.info("broker %d stops before it has started", self.config.broker_id)
            return False
        except MalformedNode as error:
            if not self._start.has_own_registry:
                raise
            registry_dir = self.config.registry_dir
            raise RegistryError(
                f"{error}; with the broker stopped, write what it should hold through kafkalite registry --data "
                f"{registry_dir}, or have the registry made from the logs by kafkalite registry rebuild"
            ) from error
        return True

    def _ready_text(self) -> str:
        ready = f"kafkalite broker {self.config.broker_id} ready on {self._start.address}"
        if self._start.registry_address is not None:
            ready += f"\nkafkalite broker {self.config.broker_id} registry ready on {self._start.registry_address}"
        if self._start.metrics_address is not None:
            ready += f"\nkafkalite broker {self.config.broker_id} metrics ready on http://{self._start.metrics_address}"
        return ready

    def stop(self, exit_code: int = 0) -> None:
        """End :meth:`run`. A signal handler of the loop may call this."""
        self._exit_code = max(self._exit_code, exit_code)
        self._stop_wanted.set()

    def _hung_up(self) -> None:
        """Handle SIGHUP: stop if the broker is at a terminal, otherwise read the settings again."""
        if self._is_at_terminal:
            logger.info("SIGHUP: the terminal of broker %d is gone", self.config.broker_id)
            self.stop()
            return
        if self._start.tls_reload is not None:
            self._start.tls_reload.soon()
        if self._read_config is None:
            logger.info(
                "SIGHUP: broker %d was started without --config, and has no file to read", self.config.broker_id
            )
        elif self._start.settings is not None:
            try:
                changes = self._start.settings.file_changed(self._read_config())
            except ConfigError as error:
                logger.error("SIGHUP: the settings stay as they are, because the file cannot be used: %s", error)
                return
            logger.info("SIGHUP: broker %d has read its settings: %s", self.config.broker_id, changes.text())

    def _disks_lost(self, error: KafkaStorageError) -> None:
        """Stop, because no log directory is left. Source: LogManager.handleLogDirFailure."""
        logger.critical("broker %d stops: %s", self.config.broker_id, error)
        self.stop(1)
        self._halt.start()

    def _registry_lost(self, error: BaseException) -> None:
        if not self._stop_wanted.is_set():
            logger.error(
                "broker %d stops: %s",
                self.config.broker_id,
                error,
                exc_info=None if isinstance(error, KafkaliteError) else error,
            )
            self.stop(1)


def limit_kept_memory() -> None:
    """Have all threads allocate from two arenas. With one for each thread, each keeps what a large batch has taken.

    Call it before there are threads: an arena that exists stays.
    """
    set_option(Option.ARENA_MAX, _ARENAS)


def run_broker(config: BrokerConfig, read_config: Callable[[], BrokerConfig] | None = None) -> int:
    """Run a broker in this process until SIGTERM or SIGINT; return the exit code.

    ``read_config`` reads the settings again at SIGHUP; None if no file contains them.
    Raises KafkaliteError if the broker cannot start; the caller shows the text.
    """
    limit_kept_memory()
    configure_logging(config["logging.level"], log_format=config["log.format"], broker_id=config.broker_id)
    logger.info(
        "kafkalite %s: broker %d starts (pid %d), log.dirs=%s",
        VERSION,
        config.broker_id,
        os.getpid(),
        ",".join(map(str, config.log_dirs)),
    )
    for name in config.without_effect:
        logger.info("%s has no effect: %s", name, BROKER_SETTINGS.without_effect[name])

    def print_ready(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    async def run() -> int:
        running_loops.append(asyncio.get_running_loop())
        return await Broker(config, read_config=read_config).run(print_ready)

    running_loops: list[asyncio.AbstractEventLoop] = []
    log_stacks_at_sigusr1(lambda: running_loops[0] if running_loops else None)
    return event_loop.run(run())
