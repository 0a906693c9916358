import gc
import platform

from spark_kafkalite.spark.worker_memory import keep_freed_memory, settle_worker


def test_the_gnu_c_library_agrees():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")


def test_what_a_worker_has_loaded_is_not_looked_through_again():
    settle_worker.cache_clear()
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
