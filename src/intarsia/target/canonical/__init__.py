# SPDX-License-Identifier: Apache-2.0
"""Canonicalisers of the catalogue's kinds, by the name that the catalogue calls them.

They check what a type cannot, fill in what follows from the rest, and derive keys and features.
Every one is idempotent.
"""

from __future__ import annotations

from intarsia.target.canonical.cpu import canonicalize_cpu, canonicalize_llvm
from intarsia.target.canonical.gpu import (
    canonicalize_cuda,
    canonicalize_nvptx,
    canonicalize_rocm,
    canonicalize_webgpu,
)
from intarsia.target.canonical.hexagon import canonicalize_hexagon
from intarsia.target.canonical.testing import canonicalize_test
from intarsia.target.kind import Canonicalizer

CANONICALIZERS: dict[str, Canonicalizer] = {
    "cpu": canonicalize_cpu,
    "cuda": canonicalize_cuda,
    "hexagon": canonicalize_hexagon,
    "llvm": canonicalize_llvm,
    "nvptx": canonicalize_nvptx,
    "rocm": canonicalize_rocm,
    "test": canonicalize_test,
    "webgpu": canonicalize_webgpu,
}
