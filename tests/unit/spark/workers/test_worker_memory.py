import gc
import importlib
import platform
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from spark_kafkalite.spark.workers import worker_memory
from spark_kafkalite.spark.workers.worker_memory import keep_freed_memory, settle_worker


def test_the_gnu_c_library_agrees():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_what_a_worker_has_loaded_is_not_looked_through_again():
    worker_memory._settle_once.cache_clear()
    before = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    settle_worker()
    try:
        assert gc.get_freeze_count() >= before + len(kept)
        # Not the very same count: what was frozen may die meanwhile, and leaves it then.
        frozen = gc.get_freeze_count()
        loaded_later = [[] for _ in range(1000)]
        settle_worker()
        assert gc.get_freeze_count() < frozen + len(loaded_later), "a second task looked again"
    finally:
        gc.unfreeze()


def test_spark_archives_are_not_read_again_for_each_task_and_can_still_be_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = [
        tmp_path / name for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.0.5.jar", "job.zip")
    ]
    for number, archive in enumerate(archives):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(f"in_archive_{number}/__init__.py", "")
            file.writestr(f"in_archive_{number}/later.py", "")
        monkeypatch.syspath_prepend(str(archive))
        importlib.import_module(f"in_archive_{number}")

    def kept() -> set[str]:
        found = (path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimport.zipimporter))
        return {Path(path).relative_to(tmp_path).parts[0] for path in found if Path(path).is_relative_to(tmp_path)}

    # The importers of Spark's packages exist, and so do those of the packages in them.
    importlib.import_module("in_archive_0.later")
    assert kept() == {each.name for each in archives}
    settle_worker()
    try:
        # The user's own archive may be another one in the next task.
        assert kept() == {"job.zip"}
        importlib.invalidate_caches()
        assert importlib.import_module("in_archive_1.later").__file__ is not None
        settle_worker()
        assert kept() == {"job.zip"}
    finally:
        gc.unfreeze()
