import platform

from spark_kafkalite.spark.worker_memory import keep_freed_memory


def test_the_gnu_c_library_agrees():
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
