"""The one seam between the jobs and a file system: list, read, write, rename and delete, on the driver.

Data files are written by Spark's own writers; this seam moves them and writes small text files (plans, manifests). Two
implementations: :class:`LocalFiles` (the operating system) and :class:`HadoopFiles` (the session's JVM and its
``org.apache.hadoop.fs.FileSystem``, so HDFS and whatever else Hadoop has a scheme for). A path is Hadoop's unless its
scheme, or that of ``fs.defaultFS`` when it has none, is ``file``.

Promises that publishing rests on: :meth:`Files.rename_new` moves one file in a single step and never replaces
another; :meth:`Files.write_new` leaves the whole text or nothing under the name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

from spark_kafkalite.errors import KafkaliteError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class FileExists(KafkaliteError):
    """A file of that name is there already."""


class Files(Protocol):
    """The operations of one destination; every path is relative to ``root`` and uses ``/``."""

    @property
    def root(self) -> str:
        """The destination as Spark's readers and writers take it."""
        ...

    def exists(self, path: str) -> bool:
        """Say whether a file or directory is there."""
        ...

    def names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; empty when there is no such directory."""
        ...

    def read(self, path: str) -> str:
        """Return a UTF-8 text file's content. Raises FileNotFoundError."""
        ...

    def write_new(self, path: str, text: str) -> None:
        """Write a new text file in one step, durable when this returns. Raises FileExists."""
        ...

    def rename_new(self, source: str, target: str) -> None:
        """Move a file to a new name, making the target's directory. Raises FileExists, FileNotFoundError."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all it holds; nothing there is no error."""
        ...


def files_for(spark: SparkSession, destination: str) -> Files:
    """Return the files of ``destination``, a local path or any URI that this session's Hadoop knows."""
    jvm: Any = spark._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    scheme = urlsplit(destination).scheme or urlsplit(configuration.get("fs.defaultFS", "file:///")).scheme
    if scheme == "file":
        return LocalFiles(_local_path(destination))
    return HadoopFiles(jvm, configuration, destination)


def _local_path(destination: str) -> Path:
    parts = urlsplit(destination)
    return Path(parts.path if parts.scheme == "file" else destination).absolute()


class LocalFiles:
    """A directory of the local file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def root(self) -> str:
        # With its scheme, so that Spark does not read the path against another default file system. Characters
        # stay as they are: Hadoop's Path does not decode percent signs.
        return f"file://{self._root}"

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._root / directory))
        except FileNotFoundError:
            return []

    def read(self, path: str) -> str:
        return (self._root / path).read_text(encoding="utf-8")

    def write_new(self, path: str, text: str) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            self._link(temporary, target)
        except FileExists:
            temporary.unlink()
            raise

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

    def delete(self, path: str) -> None:
        target = self._root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HadoopFiles:
    """A directory of a Hadoop file system, through the driver's JVM. Source: org.apache.hadoop.fs.FileSystem."""

    def __init__(self, jvm: Any, configuration: Any, root: str) -> None:
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.commons.io.IOUtils
        given = self._path_class(root.rstrip("/") or "/")
        self._fs = given.getFileSystem(configuration)
        self._root = str(self._fs.makeQualified(given).toString())

    @property
    def root(self) -> str:
        return self._root

    def _path(self, path: str) -> Any:
        return self._path_class(f"{self._root}/{path}" if path else self._root)

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def _statuses(self, directory: str) -> Iterator[Any]:
        if self.exists(directory):
            yield from self._fs.listStatus(self._path(directory))

    def names(self, directory: str) -> list[str]:
        return sorted(status.getPath().getName() for status in self._statuses(directory))

    def read(self, path: str) -> str:
        if not self.exists(path):
            raise FileNotFoundError(f"{self._root}/{path}")
        stream = self._fs.open(self._path(path))
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_new(self, path: str, text: str) -> None:
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
        try:
            self.rename_new(temporary, path)
        except FileExists:
            self.delete(temporary)
            raise

    def rename_new(self, source: str, target: str) -> None:
        directory = target.rpartition("/")[0]
        self._fs.mkdirs(self._path(directory))
        # FileSystem.rename answers false, without a reason, both for a target that exists and a source that does not.
        if self._fs.rename(self._path(source), self._path(target)):
            return
        if self.exists(target):
            raise FileExists(f"{self._root}/{target} exists already")
        raise FileNotFoundError(f"{self._root}/{source}")

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)
