# SPDX-License-Identifier: Apache-2.0
"""Pooling over any number of spatial dimensions."""

from intarsia.codegen.kernels.pool.kernel import build
from intarsia.codegen.kernels.pool.schedules import candidates, schedule
from intarsia.codegen.kernels.pool.spec import Pool, PoolSchedule, flops, key

SPECS = (Pool,)

__all__ = ["SPECS", "Pool", "PoolSchedule", "build", "candidates", "flops", "key", "schedule"]
