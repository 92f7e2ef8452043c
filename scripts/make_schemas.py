# SPDX-License-Identifier: Apache-2.0
"""Write the JSON schemas of what commands print with `--json`, from the types that they print.

    python scripts/make_schemas.py docs/schemas
    python scripts/make_schemas.py --check docs/schemas

The second form exits with 1 if a file is out of date. Most answers are values of ours; the few that
are put together where they are printed are written down here, as typed dictionaries.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, TypedDict, get_args

import msgspec

from intarsia.backends.values import TensorSpec
from intarsia.bench import demo
from intarsia.bench.compare import Comparison
from intarsia.bench.demo import DemoFigures
from intarsia.bench.profile import KernelProfile
from intarsia.cache import CacheKind
from intarsia.codegen.emit.c_memory import Footprint
from intarsia.cost.exchange import Added
from intarsia.cost.key import Sample
from intarsia.cost.records import Poison, Weight
from intarsia.cost.selection import Pruned
from intarsia.errors import Place
from intarsia.measure.timing import Spread, Timing
from intarsia.native.ptxas import KernelResources
from intarsia.plan import explanation
from intarsia.plan.by_sizes import PlansBySizes
from intarsia.plan.checking import CheckReport
from intarsia.plan.compare import PlanDifference
from intarsia.plan.lock import Lock
from intarsia.plan.placement import Placement
from intarsia.plan.tuning import CutReport, Forecast, TuningReport, UnitReport
from intarsia.quantizing.quantize import QuantizationReport
from intarsia.report.absence import Absences
from intarsia.report.catalogue import KindRow, LabelRow, TagRow
from intarsia.report.differences import Difference
from intarsia.report.health import Diagnosis
from intarsia.report.kernel_needs import PlanKernels
from intarsia.report.nodes import NodeView
from intarsia.report.targets import ConfigView, Missing, TargetView
from intarsia.report.tensors import TensorSummary
from intarsia.serving.values import IndexEntry, ModelMetadata
from intarsia.tuning.kernels.tuning import KernelResult
from intarsia.verifying.values import Bisection, Fault, Verification


class WrittenFile(TypedDict):
    file: str
    nbytes: int


class Package(TypedDict):
    file: str
    nbytes: int
    annotated: str | None
    explanation: explanation.Explanation


class Program(TypedDict):
    files: list[WrittenFile]
    memory: NotRequired[Footprint]
    kernels: NotRequired[list[KernelResources]]


class SizesReport(TypedDict):
    sizes: dict[str, int]
    tuning: TuningReport | None


class Tuned(TypedDict):
    file: str
    nbytes: int
    tuning: TuningReport | None
    timing: Spread
    plans: NotRequired[PlansBySizes]
    by_sizes: NotRequired[list[SizesReport]]


class Ran(TypedDict):
    file: str
    load_seconds: float
    inputs: list[TensorSpec]
    outputs: list[TensorSummary]
    written: dict[str, str]
    timing: Timing | None
    faults: NotRequired[list[Fault]]
    trace: NotRequired[str]


class ExplainedNodes(TypedDict):
    nodes: list[NodeView]
    costs: list[UnitReport]


class ExplainedCuts(TypedDict):
    cuts: list[CutReport]


class CostFacts(TypedDict):
    key: str
    region: str
    target: str
    next_region: NotRequired[str]
    next_target: NotRequired[str]
    backend: str
    machine: str
    threads: str


class CostSummary(CostFacts):
    samples: int
    seconds: float | None
    low_seconds: float | None
    high_seconds: float | None
    nbytes: int | None
    source: str | None
    poison: Poison | None
    last_at: float | None


class CostList(TypedDict):
    database: str
    entries: list[CostSummary]


class CostKeyFacts(CostSummary):
    machine_text: str
    all_samples: list[Sample]
    all_weights: list[Weight]


class CostExport(TypedDict):
    file: str
    lines: int


class CostsAdded(TypedDict):
    added: dict[str, Added]


class CostDifference(CostFacts):
    change: str
    first_seconds: float | None
    second_seconds: float | None
    ratio: float | None
    first_nbytes: int | None
    second_nbytes: int | None


class CostsPruned(TypedDict):
    removed: Pruned
    dry_run: bool


class CacheFolder(TypedDict):
    folder: str
    exists: bool
    is_ours: bool
    is_writable: bool
    obstacle: str | None
    entries: int
    nbytes: int


class CacheFacts(CacheFolder):
    kinds: list[CacheKind]


class ShownTarget(TypedDict):
    target: TargetView
    runner: NotRequired[dict[str, str]]


class ShownMachine(TypedDict):
    config: ConfigView


class TargetList(TypedDict):
    kinds: NotRequired[list[KindRow]]
    tags: NotRequired[list[TagRow]]
    labels: NotRequired[list[LabelRow]]


class ServedRow(TypedDict):
    index: IndexEntry
    metadata: ModelMetadata | None


class Served(TypedDict):
    models: list[ServedRow]


class TargetAdded(TypedDict):
    name: str
    file: str
    target: str


class TargetDifferences(TypedDict):
    left: str
    right: str
    differences: list[Difference]


class Detected(TypedDict):
    text: str
    config: ConfigView
    missing: list[Missing]


class Locked(TypedDict):
    file: str
    lock: Lock


class Quantized(TypedDict):
    file: str
    report: QuantizationReport
    error: float


class OwnKey(TypedDict):
    public: str


class TrustedKeys(TypedDict):
    trusted: dict[str, str]


class Signed(TypedDict):
    file: str
    public: str


class ErrorFacts(TypedDict):
    type: str
    message: str
    node: str | None
    target: str | None
    hint: str | None
    place: NotRequired[Place]


class Failed(TypedDict):
    error: ErrorFacts


ANSWERS: dict[str, Any] = {
    "bench": Comparison | KernelProfile | list[Comparison] | list[KernelProfile],
    "cache clear": CacheFolder,
    "cache info": CacheFacts,
    "check": CheckReport,
    "compile": Package | Program,
    "costs diff": list[CostDifference],
    "costs export": CostExport,
    "costs import": CostsAdded,
    "costs ls": CostList,
    "costs merge": CostsAdded,
    "costs prune": CostsPruned,
    "costs show": CostKeyFacts,
    "demo": DemoFigures,
    "doctor": Diagnosis,
    "explain": explanation.Explanation | ExplainedNodes | ExplainedCuts | Absences | PlanKernels,
    "keys distrust": TrustedKeys,
    "keys list": TrustedKeys,
    "keys make": OwnKey,
    "keys show": OwnKey,
    "keys sign": Signed,
    "keys trust": TrustedKeys,
    "plan absent": TuningReport,
    "plan diff": PlanDifference,
    "plan forecast": Forecast,
    "plan lock": Locked,
    "quantize": Quantized,
    "reduce": Bisection,
    "run": Ran,
    "serve": Served,
    "target add": TargetAdded,
    "target detect": Detected,
    "target diff": TargetDifferences,
    "target list": TargetList,
    "target show": ShownTarget | ShownMachine,
    "tune": Tuned,
    "tune-kernels": list[KernelResult],
    "verify": Verification | Bisection,
}
"""What each command prints: one of several, where its options decide."""

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n     +.*)*)", re.MULTILINE)
_REF = "#/$defs/{name}"


def make_schemas() -> dict[str, str]:
    """Return the text of each file by its name."""
    # what these modules import for their types alone
    vars(explanation).update(PlansBySizes=PlansBySizes, TuningReport=TuningReport)
    vars(demo).update(Placement=Placement)
    answers = {f"intarsia {command} --json": answer for command, answer in ANSWERS.items()}
    made = {
        f"{title.split(' ', 1)[1].removesuffix(' --json').replace(' ', '-')}.json": (title, answer)
        for title, answer in answers.items()
    }
    made["error.json"] = ("intarsia ... --json, if it fails", Failed)
    return {name: _schema(title, answer) for name, (title, answer) in made.items()}


def _schema(title: str, answer: Any) -> str:
    """Return the schema of a value, of which every field is printed."""
    union = get_args(answer) if isinstance(answer, UnionType) else (answer,)
    # one by one: msgspec reads no union of several of them, and we write only
    schemas, components = msgspec.json.schema_components(union, ref_template=_REF)
    whole = {"anyOf": list(schemas)} if len(schemas) > 1 else schemas[0]
    for component in components.values():
        _describe(component)
        _require_defaults(component)
    text = json.dumps(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": title,
            **whole,
            "$defs": _with_nulls(dict(sorted(components.items()))),
        },
        indent=1,
    )
    return f"{text}\n"


def _with_nulls(schema: Any) -> Any:
    """Return a schema in which a number may be null: JSON has no infinity, and no NaN."""
    if isinstance(schema, list):
        return [_with_nulls(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return {**schema, "type": ["number", "null"]}
    return {name: _with_nulls(one) for name, one in schema.items()}


def _describe(component: dict[str, Any]) -> None:
    """Give each property its words from the docstring, whose first sentence stays."""
    text = inspect.cleandoc(component.pop("description", ""))
    summary, _, rest = text.partition("\n\n")
    if summary and not summary.startswith(f"{component.get('title')}("):  # made by dataclasses
        component["description"] = " ".join(summary.split())
    attributes = rest.partition("Attributes:\n")[2].partition("\n\n")[0]
    for name, words in _ATTRIBUTE.findall(attributes):
        if name in component.get("properties", {}):
            one = component["properties"][name]
            component["properties"][name] = {"description": " ".join(words.split()), **one}


def _require_defaults(component: dict[str, Any]) -> None:
    """Require what has a default: it is printed all the same; and say nothing of defaults."""
    properties = component.get("properties", {})
    required = component.get("required", [])
    component["required"] = [
        name for name, one in properties.items() if name in required or "default" in one
    ]
    for one in properties.values():
        one.pop("default", None)


def main(arguments: list[str]) -> int:
    """Write or compare the files and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    made = make_schemas()
    there = {file.name: file.read_text("utf-8") for file in options.folder.glob("*.json")}
    if options.check:
        different = sorted(name for name in {*made, *there} if made.get(name) != there.get(name))
        print("".join(f"{name} is out of date\n" for name in different), end="", file=sys.stderr)
        return 1 if different else 0
    options.folder.mkdir(exist_ok=True)
    for name in there.keys() - made.keys():
        (options.folder / name).unlink()
    for name, text in made.items():
        (options.folder / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
