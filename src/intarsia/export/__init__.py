# SPDX-License-Identifier: Apache-2.0
"""A model as a program that needs no Python: C99, an object, a library or a program.

All have a header with one plain function, `int NAME_run(const float *data, float *prob)`. The
whole model must be one region of native code, because nothing else can be written down like this:

    Request -> read_setting -> Setting: the prepared model
            -> region.lower_model -> Native: the program of its one region
            -> writing.write_program -> files; those but C are compiled and linked for the target
"""

from __future__ import annotations

from intarsia.export.writing import (
    DEFAULT_TARGET,
    Product,
    export_c,
    export_executable,
    export_object,
    export_shared,
    write_program,
)

__all__ = [
    "DEFAULT_TARGET",
    "Product",
    "export_c",
    "export_executable",
    "export_object",
    "export_shared",
    "write_program",
]
