# SPDX-License-Identifier: Apache-2.0
"""Plans by sizes in the cost database: filed under the model with its dimensions free."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.cost.records import PlanVerdict
from intarsia.errors import CostDatabaseError
from intarsia.hashing import digest
from intarsia.plan.by_sizes import PlansBySizes, from_json, to_json

if TYPE_CHECKING:
    from intarsia.cost.database import CostDatabase
    from intarsia.cost.records import VerdictKey
    from intarsia.place.setting import Setting
    from intarsia.settings import Settings

logger = logging.getLogger("intarsia")


def sizes_key(setting: Setting, objective: str = "latency") -> VerdictKey:
    """Return what plans by sizes are filed under.

    Args:
        setting: The model with its dimensions free; or at nominal sizes, where they cannot be.
        objective: What was minimised, with its limit.

    Raises:
        BackendError: A runtime is not installed, or a device is not there.
    """
    key = setting.identity(is_exact=True).verdict_key(objective)
    return replace(key, model=digest(("by sizes", key.model)))


def find_plans(key: VerdictKey, costs: str | None, settings: Settings) -> PlansBySizes | None:
    """Return the plans that were filed, if there are any.

    A database that cannot be read is one warning.

    Args:
        key: As of `sizes_key`.
        costs: The database; None means what the settings say.
        settings: Likewise.
    """
    from intarsia.cost.direct import find_verdict

    try:
        verdict = find_verdict(key, costs, settings)
    except CostDatabaseError as error:
        logger.warning("the costs cannot be read, so placement is greedy: %s", error.message)
        return None
    return None if verdict is None else from_json(verdict.report)


def save_plans(database: CostDatabase, key: VerdictKey, plans: PlansBySizes) -> None:
    """File plans by sizes; those that were there are replaced.

    Raises:
        CostDatabaseError: The database cannot be written.
    """
    first = plans.points[0]
    database.save_verdict(
        key,
        PlanVerdict(
            regions=plans.plans[first.plan],
            seconds=first.seconds or 0.0,
            single=first.single,
            single_seconds=first.single_seconds or 0.0,
            predicted_seconds=0.0,
            confidence=0.0,
            is_mixed=len({region.target for region in plans.plans[first.plan]}) > 1,
            decided_at=time.time(),
            report=to_json(plans),
        ),
    )
