# SPDX-License-Identifier: Apache-2.0
"""What costs are filed under."""

import pytest

from intarsia.codegen.lower.schedules import ScheduleChoice
from intarsia.cost.database import CostDatabase
from intarsia.cost.key import Sample
from intarsia.native.schedule_table import TunedSchedule, find_table
from intarsia.tuning.costing.cost_table import CostTable, KeyMaker


@pytest.fixture
def change_sources(monkeypatch):
    """A function that lets our sources have another digest."""

    def change(digest):
        monkeypatch.setattr("intarsia.backends.sources.source_digest", lambda modules: digest)

    return change


def test_costs_of_generated_code_do_not_outlive_its_sources(
    chain_model, setting_of, change_sources, tmp_path
):
    setting = setting_of(chain_model, "llvm, onnxruntime")
    calls = {position: ((position, (0,)),) for position in (0, 1)}
    url = str(tmp_path / "costs.sqlite")

    def ask():
        with CostDatabase.open(url) as database:
            table = CostTable(KeyMaker(setting), database, "session")
            return [table.cost(table.keys.key(calls[position])) is not None for position in (0, 1)]

    change_sources("00000001")
    with CostDatabase.open(url) as database:
        table = CostTable(KeyMaker(setting), database, "session")
        table.add({table.keys.key(each): [Sample(1e-3)] for each in calls.values()})
    assert ask() == [True, True]
    before = setting.identity(is_exact=True).verdict_key()
    change_sources("00000002")
    assert ask() == [False, True]
    assert setting.identity(is_exact=True).verdict_key() != before
    assert "(sources 00000002" in KeyMaker(setting).version(0)


def test_costs_of_kernels_do_not_outlive_their_schedules(
    chain_model, setting_of, tmp_path, monkeypatch
):
    monkeypatch.setenv("INTARSIA_SCHEDULES", str(tmp_path))
    setting = setting_of(chain_model, "llvm, onnxruntime")

    def keys():
        maker, identity = KeyMaker(setting), setting.identity(is_exact=True)
        of_nodes = [maker.key(((position, (0,)),)) for position in (0, 1)]
        return of_nodes, identity.verdict_key()

    before = keys()
    table = find_table(
        setting.config.targets[0].target, setting.num_threads, setting.backends.settings
    )
    table.add({"kernel": TunedSchedule(ScheduleChoice("direct", {}), 1.2, 1.1, 1.3, 9, 100.0)})
    after = keys()
    assert after[0][0] != before[0][0]
    assert after[0][1] == before[0][1]
    assert after[1] != before[1]
