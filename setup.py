"""Builds the record kernel, which is in C; everything else about the package is in pyproject.toml.

It is optional: without a C compiler (or with one that fails) the build goes on and says so, and the installed package
runs on the kernel's pure Python twin, which is slower and gives the same results.
"""

from __future__ import annotations

import sys

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildOptional(build_ext):
    """Builds the kernel, and says on stderr if it was left out and what that means."""

    def build_extension(self, extension: Extension) -> None:
        try:
            super().build_extension(extension)
        except Exception as error:  # the compiler is missing, refuses or crashes: setuptools has a dozen types for it
            self.announce_left_out(extension, error)

    def announce_left_out(self, extension: Extension, error: Exception) -> None:
        print(
            f"\n*** WARNING: {extension.name} was NOT built: {error}\n"
            "*** spark-kafkalite is installed without its native kernel and will use the slower pure Python one.\n"
            "*** Install a C compiler (Debian: apt-get install gcc libc6-dev) and install again to have it.\n",
            file=sys.stderr,
            flush=True,
        )


KERNEL = Extension(
    "spark_kafkalite.records._kernel",
    ["spark_kafkalite/records/_kernel.pyx"],
    extra_compile_args=["-O3", "-g0"],
    optional=True,  # also tells an editable install not to miss the file
)

setup(ext_modules=cythonize([KERNEL], language_level=3), cmdclass={"build_ext": BuildOptional})
