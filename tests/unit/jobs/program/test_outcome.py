"""Which exit code and line an error stands for: chains of causes are those that Spark gave when each was tried.

Left out of them are stack traces, and most of the long paths.
"""

import errno
import os

import pytest

from spark_kafkalite.jobs.program.outcome import (
    Cause,
    ExitCode,
    error_line,
    of_causes,
    of_condition,
    of_os_error,
    of_text,
    own_line,
)
from spark_kafkalite.spark import conditions

SPARK = "org.apache.spark.SparkException"


def write_failed(place: str) -> Cause:
    return Cause(SPARK, f"[TASK_WRITE_FAILED] Task failed while writing rows to {place}. SQLSTATE: 58030")


FILE_SYSTEMS = {
    "a missing jar": (
        [
            Cause(
                "java.lang.RuntimeException",
                "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            ),
            Cause("java.lang.ClassNotFoundException", "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found"),
        ],
        "ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found; add the jars of its file "
        "system to Spark (spark-submit --packages or --jars)",
    ),
    "an unknown scheme": (
        [Cause("org.apache.hadoop.fs.UnsupportedFileSystemException", 'No FileSystem for scheme "nosuchscheme"')],
        'UnsupportedFileSystemException: No FileSystem for scheme "nosuchscheme"; check the scheme, or add the jars of '
        "its file system to Spark",
    ),
    "below a file": (
        [Cause("org.apache.hadoop.fs.ParentNotDirectoryException", "Parent path is not a directory: file:/data/file")],
        "ParentNotDirectoryException: Parent path is not a directory: file:/data/file; choose a place below no file",
    ),
    "a full disk": (
        [
            write_failed("file:/data/x"),
            Cause("org.apache.parquet.util.AutoCloseables$ParquetCloseResourceException", "Unable to close resource"),
            Cause("org.apache.hadoop.fs.FSError", "java.io.IOException: No space left on device"),
            Cause("java.io.IOException", "No space left on device"),
        ],
        "IOException: No space left on device; make room there and run again",
    ),
    "HDFS down": (
        [
            write_failed("hdfs://127.0.0.1:28490/loads/x"),
            Cause(
                "java.net.ConnectException",
                "Call From vm/127.0.0.1 to localhost:28490 failed on connection exception: java.net.ConnectException: "
                "Connection refused; For more details see:  http://wiki.apache.org/hadoop/ConnectionRefused",
            ),
            Cause("java.net.ConnectException", "Connection refused"),
        ],
        "ConnectException: Call From vm/127.0.0.1 to localhost:28490 failed on connection exception: "
        "java.net.ConnectException: Connection refused; check its scheme, host and port, and that its file system is "
        "up",
    ),
    "a name node that is killed while it answers": (
        [
            write_failed("hdfs://127.0.0.1:27019/big/x.parquet"),
            Cause(
                "java.io.EOFException",
                'End of File Exception between local host is: "vm/127.0.0.1"; destination host is: "localhost":27019; '
                ": java.io.EOFException; For more details see:  http://wiki.apache.org/hadoop/EOFException",
            ),
            Cause("java.io.EOFException", ""),
        ],
        'EOFException: End of File Exception between local host is: "vm/127.0.0.1"; destination host is: '
        '"localhost":27019; : java.io.EOFException; check its scheme, host and port, and that its file system is up',
    ),
    "all data nodes killed": (
        [
            write_failed("hdfs://127.0.0.1:27019/none"),
            Cause(
                "org.apache.hadoop.ipc.RemoteException",
                "File /none/part-00001.snappy.parquet could only be written to 0 of the 1 minReplication nodes. There "
                "are 2 datanode(s) running and 2 node(s) are excluded in this operation.\n"
                "\tat org.apache.hadoop.hdfs.server.blockmanagement.BlockManager.chooseTarget4NewBlock(x.java:2487)",
            ),
        ],
        "RemoteException: File /none/part-00001.snappy.parquet could only be written to 0 of the 1 minReplication "
        "nodes. There are 2 datanode(s) running and 2 node(s) are excluded in this operation.; check its scheme, host "
        "and port, and that its file system is up",
    ),
    "a quota of HDFS": (
        [
            write_failed("hdfs://127.0.0.1:27019/q"),
            Cause(
                "org.apache.hadoop.ipc.RemoteException",
                "The DiskSpace quota of /q is exceeded: quota = 1000 B but diskspace consumed = 134217728 B = 128 MB",
            ),
        ],
        "RemoteException: The DiskSpace quota of /q is exceeded: quota = 1000 B but diskspace consumed = 134217728 B = "
        "128 MB; raise the quota of that directory (hdfs dfsadmin -setSpaceQuota or -setQuota), or make room in it",
    ),
    "a long name in HDFS": (
        [
            Cause(
                "org.apache.hadoop.ipc.RemoteException",
                "The maximum path component name limit of xxx in directory /q is exceeded: limit=255 length=300",
            ),
        ],
        "RemoteException: The maximum path component name limit of xxx in directory /q is exceeded: limit=255 "
        "length=300; choose a shorter name: most file systems take 255 bytes in a name, and 4,096 in a path",
    ),
    "a quota of names in HDFS": (
        [
            Cause(
                "org.apache.hadoop.ipc.RemoteException",
                "The NameSpace quota (directories and files) of directory /q is exceeded: quota=1 file count=6",
            ),
        ],
        "RemoteException: The NameSpace quota (directories and files) of directory /q is exceeded: quota=1 file "
        "count=6; raise the quota of that directory (hdfs dfsadmin -setSpaceQuota or -setQuota), or make room in it",
    ),
    "a quota of HDFS in a task's text": (
        [
            Cause(
                SPARK,
                "Task failed while writing rows.\nCaused by: org.apache.hadoop.ipc.RemoteException("
                "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException): it is full\n\tat x.y",
            ),
        ],
        "NSQuotaExceededException: it is full; raise the quota of that directory (hdfs dfsadmin -setSpaceQuota or "
        "-setQuota), or make room in it",
    ),
    "another user": (
        [
            Cause(
                "org.apache.hadoop.security.AccessControlException",
                'Permission denied: user=somebody, access=WRITE, inode="/":root:supergroup:drwxr-xr-x\n\tat x.y',
            ),
            Cause(
                "org.apache.hadoop.ipc.RemoteException",
                'Permission denied: user=somebody, access=WRITE, inode="/":root:supergroup:drwxr-xr-x\n\tat x.y',
            ),
        ],
        'RemoteException: Permission denied: user=somebody, access=WRITE, inode="/":root:supergroup:drwxr-xr-x; run as '
        "a user with write permission there, or change its permissions",
    ),
}


@pytest.mark.parametrize("name", FILE_SYSTEMS)
def test_a_file_system_that_fails_is_a_destination(name: str) -> None:
    causes, line = FILE_SYSTEMS[name]
    assert of_causes(causes) == (ExitCode.DESTINATION, line)


def test_a_source_that_fails_a_write_is_no_destination() -> None:
    lines = (
        "Traceback (most recent call last):",
        '  File "worker.py", line 2003, in process',
        "spark_kafkalite.errors.BrokerUnreachable: tried 127.0.0.1:1: Connection refused",
        'spark_kafkalite.spark.conditions.SparkConditionError: format("kafkalite") cannot go on:',
        "[KAFKALITE_CONNECTION_FAILED] kafka.bootstrap.servers=127.0.0.1:1: no broker answers: start the broker",
        "",
    )
    causes = [write_failed("file:/data/x"), Cause("org.apache.spark.api.python.PythonException", "\n".join(lines))]
    assert of_causes(causes) == (ExitCode.SOURCE, lines[4])
    assert of_text("\n".join(lines)) == (ExitCode.SOURCE, lines[4])


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        (conditions.LOSS_COULD_NOT_READ, ExitCode.DATA_LOSS),
        (conditions.LOSS_PARTITIONS_DELETED, ExitCode.DATA_LOSS),
        (conditions.TOPIC_NOT_FOUND, ExitCode.SOURCE),
        (conditions.AUTHORIZATION_FAILED, ExitCode.SOURCE),
        (conditions.UNKNOWN_OPTION, ExitCode.USAGE),
        (conditions.WRITE_FAILED, ExitCode.DESTINATION),
        (conditions.NULL_TOPIC, ExitCode.FAILED),
    ],
)
def test_conditions_have_codes(condition: str, code: ExitCode) -> None:
    assert of_condition(condition) == code
    assert of_text(f"Job aborted\n  [{condition}] what is wrong\n\tat x.y.Z").code == code


def test_spark_repeats_a_tasks_exception_as_text() -> None:
    text = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in "
        "stage 0.0 (TID 0) (localhost executor driver): org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task "
        "failed while writing rows to file:/data/x. SQLSTATE: 58030\n"
        "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(x.scala:788)\n"
        "Caused by: java.io.IOException: No space left on device\n"
        "\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)\n"
    )
    told = of_causes([Cause(SPARK, text)])
    assert told == (ExitCode.DESTINATION, "IOException: No space left on device; make room there and run again")


@pytest.mark.parametrize(
    "causes",
    [
        [Cause(SPARK, "Python worker exited unexpectedly (crashed)"), Cause("java.io.EOFException", "")],
        [Cause(SPARK, "Python worker failed to connect back."), Cause("java.net.SocketTimeoutException", "Timed out")],
        [Cause("java.io.IOException", 'Cannot run program "python3": error=2, No such file or directory')],
        [Cause("java.lang.OutOfMemoryError", "Java heap space")],
        [],
    ],
)
def test_what_is_not_known_is_anything_else(causes: list[Cause]) -> None:
    told = of_causes(causes)
    assert told.code == ExitCode.FAILED
    assert told.line
    assert "\n" not in told.line


def test_errors_of_the_operating_system() -> None:
    assert of_os_error(NotADirectoryError(errno.ENOTDIR, "Not a directory", "/d/file/x")) == (
        ExitCode.DESTINATION,
        "/d/file/x: Not a directory; choose a place below no file",
    )
    assert of_os_error(OSError(errno.ENOSPC, "No space left on device")) == (
        ExitCode.DESTINATION,
        "No space left on device; make room there and run again",
    )
    for number, advice in (
        (errno.ENAMETOOLONG, "File name too long; choose a shorter name: most file systems take 255 bytes in a name"),
        (errno.ENOENT, "No such file or directory; check that its directory exists, and that its file system takes"),
    ):
        told = of_os_error(OSError(number, os.strerror(number), "/proc/x"))
        assert told.code == ExitCode.DESTINATION and told.line.startswith(f"/proc/x: {advice}")
    # py4j's socket, when the JVM is gone.
    assert of_os_error(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")).code == ExitCode.FAILED


def test_the_own_line_is_the_last_one_that_has_a_condition() -> None:
    assert own_line("[KAFKALITE_READ_FAILED] a\n  [KAFKALITE_WRITE_FAILED] b SQLSTATE") == (
        "[KAFKALITE_WRITE_FAILED] b SQLSTATE"
    )
    assert own_line("[PATH_NOT_FOUND] c") is None
    assert error_line(ValueError("\n\n x \ny")) == "x"
    assert error_line(ValueError()) == "ValueError"
