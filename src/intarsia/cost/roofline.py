# SPDX-License-Identifier: Apache-2.0
"""How long a region takes at least: its operations at the peak rate, its bytes at full bandwidth.

Source:
    Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009, equation 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intarsia.cost.cost import Cost, CostSource
from intarsia.cost.work import region_work

if TYPE_CHECKING:
    from intarsia.cost.peak import Peak
    from intarsia.graph.region import Region


def bound(region: Region, peak: Peak, reached: Peak | None = None) -> Cost:
    """Return what a region costs at least on a machine: optimistic, and so no estimate.

    The call itself counts nothing here; what several calls cost is the plan's to know.

    Args:
        region: With static shapes; what is not static counts nothing.
        peak: What the machine can do at most.
        reached: What a program reached there. The figure then says how long the region would
            take at that rate; the low end stays the bound.
    """
    work = region_work(region)
    computing = work.least_flop / peak.flops(work.dtype)
    moving = work.nbytes / peak.bandwidth(work.nbytes)
    seconds = max(computing, moving)
    limit = "operations" if computing >= moving else "bytes"
    likely = seconds
    if reached is not None:
        scale = peak.flops(work.dtype) / peak.flops("float32")
        computing = work.flop / (reached.flops("float32") * scale)
        likely = max(seconds, computing, work.nbytes / reached.bandwidth(work.nbytes))
    return Cost(
        seconds=likely,
        nbytes=0,
        source=CostSource.ROOFLINE,
        low_seconds=seconds,
        provenance=f"{work.flop / 1e9:.3g} GFLOP, {work.nbytes / 1e6:.3g} MB: {limit} limit",
    )
