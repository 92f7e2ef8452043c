# SPDX-License-Identifier: Apache-2.0
"""Runs ONNX's node tests through our provider in ONNX Runtime, and compares with direct use.

    python scripts/provider_conformance.py [--target llvm] [--one-in 1] [--seed 0] [--results FILE]

Of a model whose nodes are all ours the results have to be those of `intarsia.compile`, bit by bit;
of every model that ONNX Runtime loads they have to be what the test expects, unless plain ONNX
Runtime gives the same or direct use misses it too. The answer is no (1) if one is not.

With `--results`, each test's outcome is a line of JSON in that file as soon as it is known, and a
test that the file has is not run again: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

import intarsia
from intarsia.onnx_backend.conformance import OnnxCase, as_array, load_cases, quiet
from intarsia.provider.options import NAME

if TYPE_CHECKING:
    import onnx


def provider_devices() -> list[Any]:
    """Return the devices of our provider; its library is registered, once."""
    found = [one for one in onnxruntime.get_ep_devices() if one.ep_name == NAME]
    if not found:
        onnxruntime.register_execution_provider_library("intarsia", intarsia.onnxruntime_library())
        found = [one for one in onnxruntime.get_ep_devices() if one.ep_name == NAME]
    return found


def open_session(model: onnx.ModelProto, target: str) -> tuple[Any, Counter[str]]:
    """Return a session with our provider, and how many nodes each provider has."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    settings.add_provider_for_devices(provider_devices(), {"target": target})
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings)
    counts = Counter[str]()
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] += len(list(part.get_nodes()))
    return session, counts


def compare(case: OnnxCase, target: str) -> tuple[str, str]:
    """Return what became of a test, and why.

    Args:
        case: The test.
        target: Of the provider, and of direct use.

    Returns:
        `ours` if all nodes are, `mixed`, or `other`; `unfed` for types that ONNX Runtime's Python
        class does not take, `unloaded` for models that it does not load either way; or `wrong`,
        `unequal`, `failed`.
    """
    try:
        session, counts = open_session(case.model, target)
    except Exception as error:  # whatever ONNX Runtime's binding raises
        return _why_unloaded(case, error)
    kind = "ours" if set(counts) == {NAME} else "mixed" if NAME in counts else "other"
    names = [one.name for one in session.get_inputs()]
    why = ""
    for given, wanted in case.data:
        feeds = dict(zip(names, map(_as_fed, given), strict=False))
        if any(isinstance(one, np.ndarray) and one.dtype.kind == "V" for one in feeds.values()):
            return "unfed", ""
        try:
            outputs = session.run(None, feeds)
        except Exception as error:  # likewise
            if "can't be converted to MLDataType" in str(error):
                return "unfed", ""
            return ("other" if kind == "other" else "failed"), str(error)
        if kind != "other":
            expected = list(map(as_array, wanted))
            outcome, why = _judge(case, kind, target, (feeds, outputs, expected))
            if outcome != kind:
                return outcome, why
    return kind, why


def _judge(
    case: OnnxCase, kind: str, target: str, run: tuple[dict[str, Any], Sequence[Any], Sequence[Any]]
) -> tuple[str, str]:
    """Return what became of one run in which nodes were ours."""
    feeds, outputs, expected = run
    problem = _miss(case, outputs, expected)
    if kind == "ours":
        direct = list(intarsia.compile(case.model, target, cache=False).run(feeds).values())
        for one, other in zip(outputs, direct, strict=True):
            is_same = one.dtype == other.dtype and one.shape == other.shape
            if not is_same or one.tobytes() != other.tobytes():
                return "unequal", f"{one.dtype}{one.shape} and {other.dtype}{other.shape}"
        if problem and _miss(case, direct, expected):
            return kind, f"as direct use, not as expected: {problem}"
    if problem and _plain_misses(case, feeds, expected):
        return kind, f"as plain ONNX Runtime, not as expected: {problem}"
    return ("wrong", problem) if problem else (kind, "")


def _as_fed(value: Any) -> Any:
    value = as_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _miss(case: OnnxCase, outputs: Sequence[Any], expected: Sequence[Any]) -> str:
    for one, other in zip(outputs, expected, strict=True):
        if not isinstance(one, np.ndarray) or one.dtype == object:
            continue
        try:
            np.testing.assert_allclose(
                np.asarray(one, np.float64), np.asarray(other, np.float64), case.rtol, case.atol
            )
        except (AssertionError, TypeError, ValueError) as error:
            return " ".join(str(error).split())[:120]
    return ""


def _plain_misses(case: OnnxCase, feeds: dict[str, Any], expected: Sequence[Any]) -> bool:
    try:
        session = onnxruntime.InferenceSession(
            case.model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        return bool(_miss(case, session.run(None, feeds), expected))
    except Exception:  # it has no kernel for it, as a rule
        return False


def _why_unloaded(case: OnnxCase, error: Exception) -> tuple[str, str]:
    """Tell whether plain ONNX Runtime does not load a model either."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(
            case.model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
    except Exception:  # whatever its binding raises
        return "unloaded", ""
    return "failed", str(error)


def chosen_cases(one_in: int, seed: int) -> Iterator[OnnxCase]:
    """Yield a sample of the node tests, as a seed decides."""
    draw = random.Random(seed)
    for case in load_cases(("node",)):
        if draw.randrange(one_in) == 0:
            yield case


def read_results(file: Path | None) -> dict[str, str]:
    """Return the outcomes of an earlier run by the names of its tests."""
    if file is None or not file.exists():
        return {}
    found = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {one["name"]: one["outcome"] for one in found}


def main() -> int:
    """Run the tests and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--one-in", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    known = read_results(arguments.results)
    counts = Counter[str]()
    with quiet():
        for case in chosen_cases(arguments.one_in, arguments.seed):
            outcome, why = known.get(case.name), ""
            if outcome is None:
                outcome, why = compare(case, arguments.target)
                if arguments.results is not None:
                    line = json.dumps({"name": case.name, "outcome": outcome, "why": why})
                    with arguments.results.open("a", encoding="utf-8") as log:
                        log.write(f"{line}\n")
            counts[outcome] += 1
            if why:
                print(f"{case.name}: {outcome}: {why}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return 1 if counts["wrong"] + counts["unequal"] + counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
