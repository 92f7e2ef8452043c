# SPDX-License-Identifier: Apache-2.0
"""Exact invented costs in place of measurements, and no process."""

from intarsia.backends.fake import FakeCosts
from intarsia.cost.transition import TransitionTable
from intarsia.errors import ReasonCode
from intarsia.graph.region import Region
from intarsia.plan.devices import domain_text
from intarsia.tuning.laboratory.values import Preparation, Race


class ExactLaboratory:
    """Stands in for the laboratory: knows the invented costs, and starts no process."""

    def __init__(self, setting, *, feeds=None, limits=None, left=None):
        self.setting = setting
        self.prepared = []
        self.raced = 0
        self.artifacts = None
        attrs = [target.target.attrs for target in setting.config.targets]
        self.costs = [FakeCosts.of(each) for each in attrs]
        self.faults = [(each.get("fault"), each.get("fault-ops")) for each in attrs]
        ExactLaboratory.last = self

    def close(self):
        """End nothing: there is no process."""

    def prepare(self, probes):
        self.prepared += probes
        assert len(self.prepared) <= 60  # what these models can be worth
        return {probe: Preparation(self._refusal(probe)) for probe in probes}

    def _refusal(self, probe):
        for position, nodes in probe.calls:
            fault, operators = self.faults[position]
            types = {self.setting.graph.nodes[node].op_type for node in nodes}
            if fault and (not operators or types & set(operators)):
                return ReasonCode.COMPILE_FAILED, f"{fault}, as its target asks"
        return None

    def race(self, probes, *, rounds, anchor=None, note=None):
        self.raced += len(probes)
        seconds = {probe: (self._seconds(probe),) * rounds for probe in probes}
        race = Race(seconds, "", (0.0,) * rounds, (1.0,) * rounds)
        if note is not None:
            note(race)
        return race

    def _seconds(self, probe):
        graph, total = self.setting.graph, 0.0
        nodes = {node: position for position, every in probe.calls for node in every}
        is_whole = len(nodes) == len(graph.nodes)
        copied = set()
        for position, every in probe.calls:
            costs = self.costs[position]
            total += costs.call_seconds + costs.seconds([graph.nodes[n].op_type for n in every])
            region = Region.of(graph, every)
            for value in region.inputs:
                made = nodes.get(graph.values[value].producer)
                if made != position and (made is not None or is_whole):
                    copied.add((value, made, position))
            if is_whole:
                copied |= {(v, position, None) for v in region.outputs if v in graph.output_set}
        for value, *ends in copied:
            for position in ends:
                if position is not None:
                    costs = self.costs[position]
                    nbytes = graph.values[value].nbytes
                    total += costs.copy_seconds + nbytes * costs.copy_seconds_per_byte
        return total

    def drop(self, probes):
        pass


def copies(lab):
    tables = {}
    for position, costs in enumerate(lab.costs):
        domain = domain_text(lab.setting.constraints.domains[lab.setting.config.targets[position]])
        points = [
            (nbytes, 1e-12 + costs.copy_seconds + nbytes * costs.copy_seconds_per_byte)
            for nbytes in (64, 4096, 1 << 20)
        ]
        tables["cpu:0", domain] = tables[domain, "cpu:0"] = TransitionTable.from_probes(points)
    return tables
