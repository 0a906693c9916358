"""Both twins of the kernel, and what makes their outcomes comparable."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from spark_kafkalite.records import batch_py


@pytest.fixture(scope="session")
def native() -> ModuleType:
    """The native twin. Without it there is nothing to compare, and a build that was meant to have it is broken."""
    try:
        return importlib.import_module("spark_kafkalite.records._kernel")
    except ImportError:
        pytest.skip("the native kernel is not built: python setup.py build_ext --inplace")


@pytest.fixture(scope="session")
def python() -> ModuleType:
    return batch_py
