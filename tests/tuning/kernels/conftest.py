"""Runs kernels as the tests of the code generator do."""

from tests.codegen.conftest import run_kernel

__all__ = ["run_kernel"]
