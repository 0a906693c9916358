"""What commands of the registry read: a file with a digest, and the log directories of a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from spark_kafkalite.broker.settings.config import BrokerConfig


class BrokerDirectories(NamedTuple):
    """A broker's log directories, the ids of those that are lost, and its settings where a file named them."""

    paths: list[str]
    lost: tuple[str, ...]
    config: BrokerConfig | None


def broker_directories(config_path: str | None, log_dirs: str | None, lost: tuple[str, ...]) -> BrokerDirectories:
    """Return the directories that --config or --log-dirs names; ``lost`` is what --lost names. Raises UsageError unless
    exactly one of both is given, ConfigError."""
    if (config_path is None) == (log_dirs is None):
        raise click.UsageError("name the log directories: either --config FILE or --log-dirs DIR[,DIR]")
    if config_path is None:
        assert log_dirs is not None
        return BrokerDirectories(named_directories(log_dirs), lost, None)
    from spark_kafkalite.broker.settings.config import BrokerConfig

    config = BrokerConfig.load(Path(config_path))
    paths = [_without_end(str(each)) for each in config.log_dirs]
    return BrokerDirectories(paths, (*lost, *config["log.dirs.lost"]), config)


def named_directories(log_dirs: str) -> list[str]:
    """Return the directories of a value of --log-dirs. Raises UsageError when there is none in it."""
    found = [_without_end(each.strip()) for each in log_dirs.split(",") if each.strip()]
    if not found:
        raise click.UsageError(f"--log-dirs {log_dirs!r}: no directory in it")
    return found


def _without_end(path: str) -> str:
    return path.rstrip("/") or "/"


def read_digest(path: str | None) -> str | None:
    """Return the USER:PASSWORD in a file, None without one. Raises UsageError when it cannot be read."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise click.UsageError(f"--digest-file {path}: {error.strerror}") from error
