"""The names under which a destination keeps a topic's files.

A topic's directory is its name, and each file's name begins with it. Two kinds of names are not taken as they are:

- Spark, Hive and MapReduce leave out what begins with ``_`` or ``.``, and Spark what ends in ``._COPYING_``. That first
  or last character is written as ``%XX`` (``%5Fschemas``, ``%2Ehidden``), so no topic lies among the job's own files in
  ``_kafkalite`` either. Sources: org.apache.spark.util.HadoopFSUtils.shouldFilterOutPathName,
  org.apache.hadoop.mapred.FileInputFormat.
- A name that the file system does not take is cut, and ``%`` and 32 hex digits of the whole name's SHA-256 end it. The
  manifest has the whole name.

``%`` is illegal in a topic's name, so different topics never share a name here, whatever they are called.

Pure: no file system, no Spark. Lengths are in bytes, which are characters here: topics' names are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

# NAME_MAX of Linux's file systems, and HDFS's default of dfs.namenode.fs-limits.max-component-length.
NAME_MAX_BYTES: Final = 255
# Hadoop's local file system looks for `.NAME.crc` beside every file.
_CHECKSUM_NAME_EXTRA: Final = len("." + ".crc")
_DIGEST_DIGITS: Final = 32
_HIDDEN_ENDING: Final = "._COPYING_"
_OFFSET_DIGITS: Final = 20
# Source: org.apache.spark.deploy.SparkHadoopUtil.isGlobPath.
_PATTERNS: Final = frozenset("{}[]*?\\")
_ENDING: Final = re.compile(r"\.(parquet|orc|json|avro|txt)(?:\.[a-z0-9]+)?\Z", re.ASCII)
_RECREATED: Final = re.compile(r"-recreated([1-9][0-9]*)\.[a-z]+(?:\.[a-z0-9]+)?\Z", re.ASCII)
# Of Spark's directories while a run stages; they hold a partition, a day and an hour beside the topic. Far below any
# limit, because a hash there is seen by nobody.
MAX_STAGED_TOPIC: Final = 100
# The column that makes those directories: topic@[day[@hour]], the topic as `staged_topic` has it, or what is no record
# of a file. Neither '@' nor the '~' before a hash can stand in a topic's name.
GROUP: Final = "kafkalite_group"
# The column of pieces of files, where tasks make them.
DATA: Final = "kafkalite_data"
NO_DATA: Final = "@"
ACCOUNTS: Final = "@accounts"
FACTS: Final = "@facts"
QUARANTINED: Final = "@quarantined"
# Offsets of rows that are no records but documents, and the groups that these are of.
ACCOUNT_OFFSET: Final = -1
HELD_BACK_OFFSET: Final = -2
# How the reason of such a record begins, and of no other one.
TIMESTAMP_REASON: Final = "the record's timestamp, "
DOCUMENT_GROUPS: Final[Mapping[int, str]] = {ACCOUNT_OFFSET: ACCOUNTS, HELD_BACK_OFFSET: QUARANTINED}


def place_problem(path: str) -> str | None:
    """Return why a destination's path cannot be read by Spark, None if it can."""
    patterns = sorted(_PATTERNS.intersection(path))
    if not patterns:
        return None
    return (
        f"{path}: Spark reads a path with {' '.join(patterns)} as a pattern of several paths; name a directory without "
        f"any of {' '.join(sorted(_PATTERNS))}"
    )


def is_hidden(name: str) -> bool:
    """Return whether programs skip a directory or a file of this name, such as that of a topic."""
    return name.startswith(("_", ".")) or name.endswith(_HIDDEN_ENDING)


def directory_name(topic: str, name_max_bytes: int = NAME_MAX_BYTES) -> str:
    """Return the name of the topic's directory under the destination."""
    return _fitting(topic, name_max_bytes)


def file_name(
    topic: str,
    partition: int,
    first_offset: int,
    last_offset: int,
    recreations: int = 0,
    name_max_bytes: int = NAME_MAX_BYTES,
    file_format: str = "parquet",
) -> str:
    """Return a data file's published name; both offsets inclusive, in 20 digits so that names sort by offset.

    ``recreations`` counts how often the topic has been deleted and created again since its first load. Its offsets
    start at 0 again each time, and its files must not get the names of those before.
    """
    ending = f"-{partition}-{first_offset:0{_OFFSET_DIGITS}d}-{last_offset:0{_OFFSET_DIGITS}d}{_recreated(recreations)}"
    return _with_ending(topic, f"{ending}.{file_format}", name_max_bytes)


def shared_file_name(
    topic: str,
    kind: str,
    run: str,
    number: int,
    name_max_bytes: int = NAME_MAX_BYTES,
    file_format: str = "parquet",
    recreations: int = 0,
) -> str:
    """Return the name of a data file with rows of several partitions: the ``number``-th of a ``run`` of some kind."""
    ending = f"-{kind}-{run}-{number}{_recreated(recreations)}"
    return _with_ending(topic, f"{ending}.{file_format}", name_max_bytes)


def recreations_in_name(path: str) -> int:
    """Return how often a topic had been created again when the file was named, by its name."""
    found = _RECREATED.search(path)
    return int(found[1]) if found else 0


def _recreated(recreations: int) -> str:
    return f"-recreated{recreations}" if recreations else ""


def _with_ending(topic: str, ending: str, name_max_bytes: int) -> str:
    return _fitting(topic, name_max_bytes - _CHECKSUM_NAME_EXTRA - len(ending)) + ending


def is_data_file(path: str) -> bool:
    """Return whether a path ends as that of a published data file does."""
    return _ENDING.search(path) is not None


def file_format_of(path: str) -> str:
    """Return the format of a published data file, which its name ends in, before a codec's ending or not."""
    found = _ENDING.search(path)
    if found is None:
        raise ValueError(f"{path} does not end as a published file does")
    return found[1]


def staged_topic(topic: str) -> str:
    """Return what stands for the topic in the directories of a run's staging; `staging` computes the same in Spark."""
    return f"~{sha256(topic.encode()).hexdigest()}" if len(topic) > MAX_STAGED_TOPIC else topic


def _fitting(topic: str, available: int) -> str:
    name = topic
    if name[0] in "_.":
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if name.endswith(_HIDDEN_ENDING):
        name = f"{name[:-1]}%{ord(name[-1]):02X}"
    if len(name) <= available:
        return name
    digest = sha256(topic.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{name[: available - 1 - _DIGEST_DIGITS]}%{digest}"
