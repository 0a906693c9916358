"""The exit codes of jobs, and the exit code of each error.

Errors of Spark's writers come through the JVM as a chain of causes. The outermost one always is that a task failed,
for lost records, an unreachable broker and a full disk alike. The reason is further in: errors of the source carry a
condition, errors of file systems have classes and texts of their own. This module searches the whole chain for both,
the innermost cause first.

Pure but for :func:`java_causes`, which asks the JVM.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from spark_kafkalite.spark import conditions


class ExitCode(IntEnum):
    """The exit codes of a job other than 0, which is success."""

    FAILED = 1
    USAGE = 2
    SOURCE = 3
    DATA_LOSS = 4
    DESTINATION = 5
    HELD = 6
    NOTHING_WAITS = 7
    # As in shells: 128 plus the signal's number.
    STOPPED = 143


EPILOG: Final = """\b
Exit codes:
  0  done
  1  anything else
  2  usage: an option is wrong
  3  source: a broker or schema registry cannot be reached or refuses, or a topic does not exist
  4  data would be lost: out of range, recreated topic, truncated log, a hole
  5  destination: its file system is down, full, read-only, unknown, or refuses; a topic does not take records
  6  another run holds the destination, or has taken it over
  7  hadoop_load --sensor: nothing is to be loaded
  143  stopped by SIGTERM
Errors are one line on stderr; --debug shows the traceback behind it.
"""

_MAX_CAUSES: Final = 20
_USAGE_CONDITIONS: Final = frozenset(
    {
        conditions.INVALID_OPTION,
        conditions.UNKNOWN_OPTION,
        conditions.UNSUPPORTED_OPTION,
        conditions.INVALID_SCHEMA,
        conditions.INVALID_OFFSET,
        conditions.OFFSETS_DO_NOT_MATCH_ASSIGNED,
        conditions.TIMESTAMPS_DO_NOT_MATCH_ASSIGNED,
        conditions.START_AND_END_MISMATCH,
        conditions.UNRESOLVED_START_AFTER_END,
        conditions.RESOLVED_START_AFTER_END,
    }
)
_SOURCE_CONDITIONS: Final = frozenset(
    {
        conditions.CONNECTION_FAILED,
        conditions.AUTHENTICATION_FAILED,
        conditions.AUTHORIZATION_FAILED,
        conditions.TOPIC_NOT_FOUND,
        conditions.READ_FAILED,
        conditions.SCHEMA_REGISTRY_FAILED,
    }
)
_LOSS_PREFIX: Final = "KAFKA_DATA_LOSS"
_CONDITION: Final = re.compile(r"\[(KAFKA[A-Z_]*(?:\.[A-Z_]+)?)\] .*")
# A Java exception as text: its class (of a RemoteException the one in brackets), and its message on the same line.
_CLASS: Final = r"((?:[a-z][\w$]*\.)+[A-Z][\w$]*)"
_AS_TEXT: Final = re.compile(rf"^(?:Caused by: )?{_CLASS}(?:\({_CLASS}\))?(?:: (.*))?$", re.ASCII)


class Cause(NamedTuple):
    """One exception of a chain: its Java class and its message, which may have many lines."""

    class_name: str
    message: str


class Told(NamedTuple):
    """How a job reports an error: the exit code, and one line."""

    code: ExitCode
    line: str


class _Sign(NamedTuple):
    """How to recognize a failure of a file system, and what helps."""

    class_names: re.Pattern[str]
    message: re.Pattern[str]
    advice: str


def _sign(class_names: str, message: str, advice: str) -> _Sign:
    return _Sign(re.compile(class_names), re.compile(message), advice)


_UP: Final = "check its scheme, host and port, and that its file system is up"
_QUOTA: Final = "raise the quota of that directory (hdfs dfsadmin -setSpaceQuota or -setQuota), or make room in it"
_SHORTER: Final = "choose a shorter name: most file systems take 255 bytes in a name, and 4,096 in a path"
# The first matching sign applies.
_SIGNS: Final = (
    _sign("", r"No space left on device|Disk quota exceeded", "make room there and run again"),
    _sign(r"DSQuotaExceededException|NSQuotaExceededException|QuotaByStorageType", "", _QUOTA),
    # HDFS may report it as a RemoteException, whose text does not always contain the original class.
    _sign("", r"(DiskSpace|NameSpace) quota\b.* of .* is exceeded|Quota by storage type", _QUOTA),
    _sign("", r"Read-only file system", "it is mounted read-only: mount it for writing, or choose another place"),
    _sign(r"AccessControlException", "", "run as a user with write permission there, or change its permissions"),
    _sign(r"AccessDeniedException", "", "run as a user with write permission there, or change its permissions"),
    _sign("", r"\(?Permission denied\)?", "run as a user with write permission there, or change its permissions"),
    _sign(r"UnsupportedFileSystemException", "", "check the scheme, or add the jars of its file system to Spark"),
    _sign(
        r"ClassNotFoundException",
        r"Class \S*FileSystem\S* not found|\S*FileSystem$",
        "add the jars of its file system to Spark (spark-submit --packages or --jars)",
    ),
    _sign(r"ParentNotDirectoryException|NotDirectoryException|PathIsNotDirectory", "", "choose a place below no file"),
    _sign("", r"Not a directory|Mkdirs failed|Parent path is not a directory", "choose a place below no file"),
    _sign("", r"path component name limit of .* is exceeded|Pathname too long|File name too long", _SHORTER),
    _sign("", r"Name node is in safe mode|SafeModeException", "run again when its name node takes writes"),
    _sign(r"java\.net\.(ConnectException|NoRouteToHostException|UnknownHostException)", "", _UP),
    _sign(r"ConnectTimeoutException", "", _UP),
    _sign("", r"^(End of File Exception|Failed on local exception).* local host is: ", _UP),
    # Not Spark's own timeout of a Python process that does not answer.
    _sign(r"SocketTimeoutException", r"Call From|waiting for channel to be ready", _UP),
    _sign("", r"could only be written to 0 of|All datanodes .* are bad|could not get block locations", _UP),
    _sign(r"org\.apache\.hadoop\.(fs|hdfs|ipc|security)\.", "", _UP),
    _sign(r"java\.nio\.file\.\w*Exception", "", "check that the directory exists and that you may write to it"),
    _sign(r"java\.io\.FileNotFoundException", "", "it was deleted meanwhile: run again"),
    _sign("", r"Input/output error|Stale file handle", "check the disk and its mount"),
)

_ADVICE: Final = {
    errno.ENOSPC: "make room there and run again",
    errno.EDQUOT: "raise the quota, or make room there",
    errno.EROFS: "it is mounted read-only: mount it for writing, or choose another place",
    errno.EACCES: "run as a user with write permission there, or change its permissions",
    errno.EPERM: "run as a user with write permission there, or change its permissions",
    errno.ENOTDIR: "choose a place below no file",
    errno.EEXIST: "choose a place below no file",
    errno.ENAMETOOLONG: _SHORTER,
    # Of a directory that is to be made, as in /proc.
    errno.ENOENT: "check that its directory exists, and that its file system takes new files",
}
# The errors of operations on an open file: they do not name the file.
_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE})


def of_condition(condition: str) -> ExitCode:
    """Return the exit code for a condition of the source or sink (``conditions``)."""
    if condition.startswith(_LOSS_PREFIX):
        return ExitCode.DATA_LOSS
    if condition in _SOURCE_CONDITIONS:
        return ExitCode.SOURCE
    if condition == conditions.WRITE_FAILED:
        return ExitCode.DESTINATION
    return ExitCode.USAGE if condition in _USAGE_CONDITIONS else ExitCode.FAILED


def own_line(text: str) -> str | None:
    """Return the source's or sink's own ``[CONDITION] ...`` line in an engine's error text, or None."""
    found = [match[0] for line in text.splitlines() if (match := _CONDITION.search(line.strip()))]
    return found[-1] if found else None


def of_text(text: str) -> Told:
    """Return the exit code and the line for an error from its text alone."""
    own = own_line(text)
    if own is not None:
        match = _CONDITION.match(own)
        assert match is not None
        return Told(of_condition(match[1]), own)
    return _of_file_system([Cause("", text)]) or Told(ExitCode.FAILED, first_line(text))


def of_causes(causes: Sequence[Cause]) -> Told:
    """Return the exit code and the line for a chain of Java exceptions, the outermost first."""
    for cause in reversed(causes):
        if own_line(cause.message) is not None:
            return of_text(cause.message)
    told = _of_file_system(causes)
    if told is not None:
        return told
    if not causes:
        return Told(ExitCode.FAILED, "the JVM reports no cause")
    innermost = causes[-1]
    return Told(ExitCode.FAILED, f"{innermost.class_name.rpartition('.')[2]}: {first_line(innermost.message)}")


def _of_file_system(causes: Sequence[Cause]) -> Told | None:
    # Spark repeats a task's exception as text in its own message, whether or not the exception is a cause in the chain.
    chain = [each for cause in causes for each in (cause, *_in_text(cause.message))]
    for at, (class_name, message) in reversed(list(enumerate(chain))):
        for sign in _SIGNS:
            if sign.class_names.search(class_name) and sign.message.search(message):
                # Hadoop's client wraps an error in one of the same class, whose message names the place.
                if at and chain[at - 1].class_name == class_name and message in chain[at - 1].message:
                    message = chain[at - 1].message
                name = class_name.rpartition(".")[2]
                return Told(ExitCode.DESTINATION, f"{name}: {first_line(message)}; {sign.advice}")
    return None


def of_os_error(error: OSError) -> Told:
    """Return the exit code and the line for an error of the operating system, of a file or anything else."""
    reason = first_line(error.strerror or str(error))
    where = f"{error.filename}: " if error.filename is not None else ""
    if error.filename is None and error.errno not in _DISK_ERRORS:
        return Told(ExitCode.FAILED, f"{type(error).__name__}: {reason}")
    advice = _ADVICE.get(error.errno or 0)
    return Told(ExitCode.DESTINATION, f"{where}{reason}{f'; {advice}' if advice else ''}")


def _in_text(message: str) -> list[Cause]:
    found = (_AS_TEXT.match(line.strip()) for line in message.splitlines())
    return [Cause(match[2] or match[1], match[3] or "") for match in found if match]


def first_line(text: str) -> str:
    """Return the first line that is not blank, without the link to Hadoop's wiki that Hadoop's client appends."""
    line = next((stripped for line in text.splitlines() if (stripped := line.strip())), "without a message")
    return re.sub(r"; For more details see: +https?://\S+$", "", line)


def java_causes(exception: Any) -> list[Cause]:
    """Return the chain of causes of a Java exception from py4j, the outermost first."""
    causes: list[Cause] = []
    while exception is not None and len(causes) < _MAX_CAUSES:
        causes.append(Cause(str(exception.getClass().getName()), str(exception.getMessage() or "")))
        exception = exception.getCause()
    return causes


def error_line(error: BaseException) -> str:
    """Return one line for an error of any kind."""
    exception = getattr(error, "java_exception", None)
    if exception is not None:
        return of_causes(java_causes(exception)).line
    return first_line(str(error)) if str(error) else type(error).__name__
