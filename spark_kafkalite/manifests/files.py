"""The one interface between the jobs and a file system: list, read, write, rename and delete, on the driver.

Data files are written by Spark's own writers, and by the driver where there is little to write; this seam moves them
and writes small text files (plans, manifests). The commands about checkpoints stand on it, too. Two implementations:
:class:`LocalFiles` (the operating system) and :class:`HadoopFiles` (the session's JVM and its
``org.apache.hadoop.fs.FileSystem``, so HDFS and whatever else Hadoop has a scheme for). A path is Hadoop's unless its
scheme, or that of ``fs.defaultFS`` when it has none, is ``file``.

Promises that publishing rests on: :meth:`Files.rename_new` moves one file in a single step and never replaces
another; :meth:`Files.write_new` leaves the whole text or nothing under the name, :meth:`Files.replace` the whole new
or the whole old one.
"""

from __future__ import annotations

import io
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol, cast
from urllib.parse import urlsplit
from uuid import uuid4

from spark_kafkalite.errors import KafkaliteError
from spark_kafkalite.manifests.hadoop_streams import CALL_BYTES, HadoopFile, HadoopReader
from spark_kafkalite.manifests.names import NAME_MAX_BYTES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READ_BYTES: Final = 1 << 20


class FilesError(KafkaliteError):
    """The file system refuses, and reports no reason."""


class FileExists(KafkaliteError):
    """A file of that name exists already."""


class NewFile(Protocol):
    """A file that is being written; it is durable when :meth:`close` returns."""

    def write(self, data: bytes) -> None:
        """Append bytes."""
        ...

    def close(self) -> None:
        """End the file."""
        ...


class Files(Protocol):
    """The operations of one destination; every path is relative to ``root`` and uses ``/``."""

    @property
    def root(self) -> str:
        """The destination as Spark's readers and writers take it."""
        ...

    @property
    def name_max_bytes(self) -> int:
        """The longest name of a file or directory that the file system takes."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        ...

    def size_bytes(self, path: str) -> int | None:
        """Return a file's length, None when there is no such file."""
        ...

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; empty when there is no such directory."""
        ...

    def read(self, path: str) -> str:
        """Return a UTF-8 text file's content. Raises FileNotFoundError."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading from any place of it. Raises FileNotFoundError."""
        ...

    def tail(self, path: str, most_bytes: int) -> tuple[int, bytes]:
        """Return a file's length, and its last bytes. Raises FileNotFoundError."""
        ...

    def write_new(self, path: str, text: str) -> None:
        """Write a new text file in one step, durable when this returns. Raises FileExists."""
        ...

    def create(self, path: str) -> NewFile:
        """Begin a new file, and make its directory; what is written may be seen before it is closed."""
        ...

    def replace(self, path: str, text: str) -> None:
        """Give a text file another content in one step, durable when this returns."""
        ...

    def modified_ms(self, path: str) -> int | None:
        """Return when a file was last written, or a directory got or lost an entry, in ms since the epoch.

        None if it does not exist. The time is by the file system's clock.
        """
        ...

    def beside(self, suffix: str) -> Files:
        """Return the files of the directory next to the root that has its name and this suffix."""
        ...

    def rename_new(self, source: str, target: str) -> None:
        """Move a file to a new name, making the target's directory. Raises FileExists, FileNotFoundError."""
        ...

    def move_directory(self, source: str, target: str) -> None:
        """Move a directory in one step to a name that nothing has. Raises FileNotFoundError."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all it holds; nothing there is no error."""
        ...


def files_for(spark: SparkSession, destination: str) -> Files:
    """Return the files of ``destination``, a local path or any URI that this session's Hadoop knows."""
    return files_in(spark._jvm, spark.sparkContext._jsc.hadoopConfiguration(), destination)


def files_in(jvm: Any, configuration: Any, destination: str) -> Files:
    """Return the files of ``destination``, by the JVM's Hadoop with this configuration unless they are local."""
    scheme = urlsplit(destination).scheme or urlsplit(configuration.get("fs.defaultFS", "file:///")).scheme
    return local_files(destination) if scheme == "file" else HadoopFiles(jvm, configuration, destination)


def local_files(destination: str) -> LocalFiles:
    """Return the files of a local path, with or without its scheme ``file``."""
    parts = urlsplit(destination)
    return LocalFiles(Path(parts.path if parts.scheme == "file" else destination).absolute())


class LocalFiles:
    """A directory of the local file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> str:
        # With its scheme, so that Spark does not read the path against another default file system. Characters
        # stay as they are: Hadoop's Path does not decode percent signs.
        return f"file://{self._root}"

    @property
    def name_max_bytes(self) -> int:
        there = next(path for path in (self._root, *self._root.parents) if path.exists())
        return min(os.pathconf(there, "PC_NAME_MAX"), NAME_MAX_BYTES)

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def size_bytes(self, path: str) -> int | None:
        try:
            return (self._root / path).stat().st_size
        except FileNotFoundError:
            return None

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._root / directory))
        except FileNotFoundError:
            return []

    def read(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8")

    def open(self, path: str) -> BinaryIO:
        return (self._root / path).open("rb")

    def tail(self, path: str, most_bytes: int) -> tuple[int, bytes]:
        with (self._root / path).open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - most_bytes))
            return size_bytes, file.read()

    def create(self, path: str) -> NewFile:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return _LocalFile(target)

    def write_new(self, path: str, text: str) -> None:
        target = self._root / path
        temporary = self._written_beside(target, text)
        try:
            self._link(temporary, target)
        except FileExists:
            temporary.unlink()
            raise

    def replace(self, path: str, text: str) -> None:
        target = self._root / path
        os.replace(self._written_beside(target, text), target)
        _fsync_directory(target.parent)

    def _written_beside(self, target: Path, text: str) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def modified_ms(self, path: str) -> int | None:
        try:
            return (self._root / path).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def beside(self, suffix: str) -> LocalFiles:
        return LocalFiles(self._root.with_name(self._root.name + suffix))

    def rename_new(self, source: str, target: str) -> None:
        destination = self._root / target
        destination.parent.mkdir(parents=True, exist_ok=True)
        self._link(self._root / source, destination)

    def _link(self, source: Path, target: Path) -> None:
        # link, then unlink: unlike rename, link never replaces a file that is there.
        try:
            os.link(source, target)
        except FileExistsError:
            if not os.path.samefile(source, target):
                raise FileExists(f"{target} exists already") from None
        os.unlink(source)
        for directory in {source.parent, target.parent}:
            _fsync_directory(directory)

    def move_directory(self, source: str, target: str) -> None:
        destination = self._root / target
        destination.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self._root / source, destination)
        for directory in {(self._root / source).parent, destination.parent}:
            _fsync_directory(directory)

    def delete(self, path: str) -> None:
        target = self._root / path
        while target.is_dir():
            # Another run may delete it, too, and rmtree fails over a file that is gone.
            with suppress(FileNotFoundError):
                shutil.rmtree(target)
        target.unlink(missing_ok=True)


class _LocalFile:
    """A new file of the local file system."""

    def __init__(self, path: Path) -> None:
        self._directory = path.parent
        self._file = path.open("xb")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def close(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        _fsync_directory(self._directory)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopFiles:
    """A directory of a Hadoop file system, through the driver's JVM. Source: org.apache.hadoop.fs.FileSystem."""

    def __init__(self, jvm: Any, configuration: Any, root: str) -> None:
        self._jvm = jvm
        self._configuration = configuration
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils
        given = self._path_class(root.rstrip("/") or "/")
        self._fs = given.getFileSystem(configuration)
        self._root = str(self._fs.makeQualified(given).toString())

    @property
    def root(self) -> str:
        return self._root

    @property
    def name_max_bytes(self) -> int:
        # HDFS's limit is the name node's to know, and clients cannot ask for it. 0 is none.
        limit = int(self._configuration.get("dfs.namenode.fs-limits.max-component-length", "0"))
        return min(limit or NAME_MAX_BYTES, NAME_MAX_BYTES)

    def settings(self, prefix: str) -> dict[str, str]:
        """Return the settings of Hadoop's client whose names begin with ``prefix``."""
        found = self._configuration.getPropsWithPrefix(prefix)
        return {f"{prefix}{name}": str(value) for name, value in found.items()}

    def _path(self, path: str) -> Any:
        return self._path_class(f"{self._root}/{path}" if path else self._root)

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def size_bytes(self, path: str) -> int | None:
        if not self.exists(path):
            return None
        return int(self._fs.getFileStatus(self._path(path)).getLen())

    def names(self, directory: str) -> list[str]:
        from py4j.protocol import Py4JJavaError

        try:
            statuses = self._fs.listStatus(self._path(directory))
        except Py4JJavaError as error:
            if "FileNotFoundException" in error.java_exception.getClass().getName():
                return []
            raise
        # One call for all: ten thousand entries take seconds one by one. No name has a NUL in it. The names go into an
        # array of objects because py4j does not find a method for any other array.
        paths, lang = self._jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(statuses), self._jvm.java.lang
        objects = lang.reflect.Array.newInstance(lang.Class.forName("java.lang.Object"), len(paths))
        lang.System.arraycopy(paths, 0, objects, 0, len(paths))
        joined = str(self._jvm.org.apache.commons.lang3.StringUtils.join(objects, "\0"))
        return sorted(path.rpartition("/")[2] for path in joined.split("\0") if path)

    def read(self, path: str) -> str:
        if not self.exists(path):
            raise FileNotFoundError(f"{self._root}/{path}")
        stream = self._fs.open(self._path(path))
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def open(self, path: str) -> BinaryIO:
        size_bytes = self.size_bytes(path)
        if size_bytes is None:
            raise FileNotFoundError(f"{self._root}/{path}")
        raw = HadoopReader(self._fs.open(self._path(path)), self._io, size_bytes)
        if size_bytes > CALL_BYTES:
            return cast(BinaryIO, io.BufferedReader(raw, _READ_BYTES))
        with raw:
            return io.BytesIO(raw.readall())

    def tail(self, path: str, most_bytes: int) -> tuple[int, bytes]:
        size_bytes = self.size_bytes(path)
        if size_bytes is None:
            raise FileNotFoundError(f"{self._root}/{path}")
        with HadoopReader(self._fs.open(self._path(path)), self._io, size_bytes) as reader:
            reader.seek(max(0, size_bytes - most_bytes))
            return size_bytes, reader.readall()

    def create(self, path: str) -> NewFile:
        return HadoopFile(self._fs.create(self._path(path), False))

    def write_new(self, path: str, text: str) -> None:
        temporary = self._written_beside(path, text)
        try:
            self.rename_new(temporary, path)
        except FileExists:
            self.delete(temporary)
            raise

    def replace(self, path: str, text: str) -> None:
        temporary = self._written_beside(path, text)
        # FileSystem.rename never replaces; this is how Spark writes checkpoints itself.
        # Source: org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager.
        arrays, hadoop = self._jvm.java.lang.reflect.Array, self._jvm.org.apache.hadoop.fs
        overwrite = hadoop.Options.Rename.OVERWRITE
        options = arrays.newInstance(overwrite.getClass(), 1)
        arrays.set(options, 0, overwrite)
        context = hadoop.FileContext.getFileContext(self._fs.getUri(), self._configuration)
        context.rename(self._path(temporary), self._path(path), options)

    def _written_beside(self, path: str, text: str) -> str:
        directory, _, name = path.rpartition("/")
        # A name of its own: two runs may write the same manifest at the same time, and only one may win.
        unique = f".{name}.{uuid4().hex}.tmp"
        temporary = f"{directory}/{unique}" if directory else unique
        stream = self._fs.create(self._path(temporary), False)
        try:
            stream.write(bytearray(text, "utf-8"))
            stream.hsync()
        finally:
            stream.close()
        return temporary

    def modified_ms(self, path: str) -> int | None:
        if not self.exists(path):
            return None
        return int(self._fs.getFileStatus(self._path(path)).getModificationTime())

    def beside(self, suffix: str) -> HadoopFiles:
        return HadoopFiles(self._jvm, self._configuration, self._root + suffix)

    def rename_new(self, source: str, target: str) -> None:
        directory = target.rpartition("/")[0]
        self._fs.mkdirs(self._path(directory))
        # FileSystem.rename answers false, without a reason, both for a target that exists and a source that does not.
        if self._fs.rename(self._path(source), self._path(target)):
            return
        if not self.exists(source):
            raise FileNotFoundError(f"{self._root}/{source}")
        if self.exists(target):
            raise FileExists(f"{self._root}/{target} exists already")
        raise FilesError(f"{self._root}/{source} could not be renamed to {target}, and the file system gives no reason")

    def move_directory(self, source: str, target: str) -> None:
        self._fs.mkdirs(self._path(target.rpartition("/")[0]))
        if self._fs.rename(self._path(source), self._path(target)):
            return
        if not self.exists(source):
            raise FileNotFoundError(f"{self._root}/{source}")
        raise FilesError(f"{self._root}/{source} could not be renamed to {target}, and the file system gives no reason")

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)
