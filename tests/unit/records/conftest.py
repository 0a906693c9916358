"""The twins of the kernel: a test that takes ``kernel`` runs on both."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from spark_kafkalite.records import batch_py


@pytest.fixture(params=["native", "python"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "python":
        return batch_py
    try:
        return importlib.import_module("spark_kafkalite.records._kernel")
    except ImportError:
        pytest.skip("the native kernel is not built: python setup.py build_ext --inplace")
