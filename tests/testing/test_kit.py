# SPDX-License-Identifier: Apache-2.0
"""The kit itself: what it tries, how it compares, and how it speaks."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from intarsia.backends.registry import load_backends
from intarsia.errors import SettingError
from intarsia.settings import Settings
from intarsia.testing import (
    CASES,
    CHECKS,
    TOLERANCES,
    Status,
    Tolerance,
    case,
    conformance,
    examine,
    fed,
    list_trials,
)
from intarsia.testing.kit import _NOT_THERE
from intarsia.testing.subject import Subject
from intarsia.testing.tolerance import EXACT, difference

TWO = (case("Add", "same", fed(2, 3), fed(2, 3)), case("Neg", "plain", fed(2, 3)))


def verdicts(target, cases=TWO, **options):
    backend = load_backends(Settings.from_environment()).named("fake")
    report = examine(backend, target, checks=["numbers"], cases=cases, **options)
    return {verdict.trial.name: verdict for verdict in report.verdicts}


EXAMPLE = Path(__file__).parents[2] / "examples" / "05_write_a_backend.py"


@pytest.mark.parametrize("form", ["path", "path and name", "module", "object", "class"])
def test_the_example_of_the_documentation_passes(form):
    """In a process that has not met it: the first check that needs its kind must not fail."""
    code = f"""
import sys
from importlib import import_module
from pathlib import Path
from intarsia.testing import examine, Status
form, path = {form!r}, {str(EXAMPLE)!r}
folder, name = Path(path).parent, Path(path).stem
if "path" not in form:
    sys.path.append(str(folder))
subject = {{
    "path": lambda: Path(path),
    "path and name": lambda: path + ":BACKEND",
    "module": lambda: name + ":BACKEND",
    "object": lambda: import_module(name).BACKEND,
    "class": lambda: import_module(name).NumpyBackend(),
}}[form]()
report = examine(subject, checks=["contract", "regions", "processes"])
print(report)
passed = {{verdict.trial.name for verdict in report.verdicts if verdict.status is Status.PASSED}}
sys.exit(bool(report.failures) or not passed >= {{"kinds", "save_and_run_in_a_fresh_process"}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("spelling", "message", "hint"),
    [
        ("missing.py", "there is no file 'missing.py'", "path"),
        ("no_such_module:BACKEND", "there is no module 'no_such_module'", r"\.py file"),
        ("json", "'BACKEND' of 'json' is not a backend", "give json:NAME"),
        (f"{EXAMPLE}:NumpyBackend", "'NumpyBackend' of .* is not a backend", "BACKEND"),
    ],
)
def test_what_names_no_backend_is_an_error(spelling, message, hint):
    with pytest.raises(SettingError, match=message) as caught:
        examine(spelling)
    assert re.search(hint, caught.value.hint)


def test_ids_are_unique_and_fit_into_a_shell_word():
    ids = [trial.id for trial in list_trials()]
    assert len(set(ids)) == len(ids)
    assert not [name for name in ids if set(name) & set(" '\"[]:$*\\")]


def test_every_check_has_a_sentence_and_something_to_try():
    tried = {trial.check for trial in list_trials()}
    assert list(CHECKS) == [name for name in CHECKS if name in tried]
    assert all(check.sentence.endswith(".") for check in CHECKS.values())


def test_the_table_covers_the_dtypes_and_float32_first():
    assert {dtype for row in CASES for dtype in row.dtypes} >= {
        *("float32", "float16", "float64", "int64", "int32", "bool", "uint8")
    }
    assert all(row.dtypes[0] == "float32" for row in CASES if "float32" in row.dtypes)


def test_the_documentation_has_every_promise_and_tolerance():
    text = (Path(__file__).parents[2] / "docs" / "backends.md").read_text(encoding="utf-8")
    for name, check in CHECKS.items():
        assert f"| `{name}` | {check.sentence} |" in text
    for name, tolerance in TOLERANCES.items():
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert [float(cell) for cell in row.split("|")[2:4]] == [tolerance.rtol, tolerance.atol]


def test_an_unknown_check_is_an_error_that_lists_the_checks():
    with pytest.raises(SettingError, match="no check 'speed'") as caught:
        list_trials(["numbers", "speed"])
    assert "contract" in caught.value.hint


def test_a_refusal_is_skipped_with_its_code_and_reason():
    found = verdicts("fake -ops=Add")
    assert found["Add-same-float32"].status is Status.PASSED
    refused = found["Neg-plain-float32"]
    assert refused.status is Status.SKIPPED
    assert refused.message == "refused: unsupported-op: -ops does not list Neg"


def test_poisoned_numbers_name_operator_dtype_shape_error_and_tolerance():
    message = verdicts("fake -fault=nan")["Add-same-float32"].message
    for part in ("Add", "float32", "[2,3]", "largest error inf", "rtol 0.0001, atol 1e-05"):
        assert part in message


def test_a_tolerance_can_be_widened_for_one_dtype():
    row = case("Exp", "plain", fed(4), dtypes=("float16",))
    tight = {"float16": Tolerance(0, 0)}
    assert verdicts("fake", (row,), tolerances=tight)["Exp-plain-float16"].status is Status.PASSED
    assert TOLERANCES["float16"].rtol > TOLERANCES["float32"].rtol > TOLERANCES["float64"].rtol


def test_the_pytest_function_skips_and_fails_as_pytest_does():
    def outcome(target):
        test = conformance(
            load_backends(Settings.from_environment()).named("fake"),
            target,
            checks=["numbers"],
            cases=TWO,
        )
        (mark,) = test.pytestmark
        neg = next(one for one in mark.args[1] if one.id == "numbers-Neg-plain-float32")
        test(*neg.values)

    outcome("fake")
    with pytest.raises(pytest.skip.Exception, match="-ops does not list Neg"):
        outcome("fake -ops=Add")
    with pytest.raises(pytest.fail.Exception, match="numbers: Every operator and dtype"):
        outcome("fake -fault=nan")


def test_a_report_counts_what_passed_was_skipped_and_failed():
    backend = load_backends(Settings.from_environment()).named("fake")
    report = examine(backend, "fake -ops=Add -fault=nan", checks=["numbers"], cases=TWO)
    assert "numbers: 1 skipped, 1 failed" in str(report)
    assert [failure.trial.name for failure in report.failures] == ["Add-same-float32"]


def test_a_backend_that_no_fresh_process_can_find_is_told_how_to_be_found():
    import saboteurs

    class Local(saboteurs.WrongNumbers):
        pass

    report = examine(Local(), checks=["processes"])
    fresh = report.verdicts[-1]
    assert fresh.status is Status.SKIPPED
    assert "define its class in a module that can be imported" in fresh.message


@pytest.mark.parametrize("target", [None, "openvino", "openvino -libs=a,b"])
def test_a_partial_kind_alone_gets_a_fallback(target):
    subject = Subject(
        load_backends(Settings.from_environment()).named("openvino"), target, TOLERANCES
    )
    assert [placed.target.kind.name for placed in subject.config.targets] == [
        "openvino",
        "reference",
    ]
    assert subject.placed.target.kind.name == "openvino"


def test_a_target_that_the_backend_does_not_serve_is_a_failure():
    report = examine(
        load_backends(Settings.from_environment()).named("fake"), "onnxruntime", checks=["contract"]
    )
    says = [failure.message for failure in report.failures if failure.trial.name == "kinds"]
    assert "served by backend 'fake'" in says[0]


def test_the_kit_is_importable_without_pytest():
    code = "import sys, intarsia.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("expected", "actual", "says"),
    [
        ([1.0, 2.0], [1.0, 2.5], "largest error 0.5 at [1]: 2.5, expected 2.0"),
        ([np.nan, 1.0], [0.0, 1.0], "largest error inf at [0]"),
        ([np.inf], [-np.inf], "largest error inf"),
        ([[1.0]], [1.0], "its shape is [1], not [1, 1]"),
        ([1.0], np.array([1.0], np.float32), "its dtype is float32, not float64"),
        (np.array([2**53 + 1]), np.array([2**53]), "1 of 1 elements are wrong"),
        (np.array(["a"], object), np.array(["b"], object), "it is ['b'], not ['a']"),
        ([np.ones(1)], np.ones(1), None),
    ],
)
def test_a_difference_is_told_in_words(expected, actual, says):
    wanted = expected if says is None else np.asarray(expected)
    told = difference(wanted, np.asarray(actual), EXACT)
    assert (says or "it is not a sequence of 1 tensors") in told


@pytest.mark.parametrize("array", [[np.nan, np.inf, 1.0], [], [True, False], 3])
def test_equal_values_do_not_differ(array):
    assert difference(np.asarray(array), np.asarray(array), EXACT) is None


def test_a_target_with_a_runner_has_a_list_of_its_own():
    backend = load_backends(Settings.from_environment()).named("llvm")
    here = examine(backend, "llvm", checks=["contract"])
    there = examine(
        backend,
        "llvm -runner=here",
        checks=["contract", "numbers", "artifacts", "devices", "runner"],
        cases=TWO[:1],
    )
    assert not there.failures, str(there)
    assert (here.runner, here.left_out) == ("", {})
    tried = {verdict.trial.id for verdict in there.verdicts}
    assert {"contract-executable", "runner-the_machine_answers", "runner-time_on_the_way"} <= tried
    assert tried.isdisjoint(there.left_out)
    assert {"contract-name", "devices-buffers"} <= there.left_out.keys()
    text = str(there)
    assert text.startswith("llvm through the runner here:")
    assert "not through a runner, as it asks the backend" in text
    assert "  runner: 2 passed" in text
    nowhere = examine(backend, "llvm -mcpu=native -runner=intarsia-none", checks=["runner"])
    assert len(nowhere.failures) == 2


def test_what_does_not_apply_through_a_runner_is_known():
    known = {trial.id for trial in list_trials()} | {trial.check for trial in list_trials()}
    assert set(_NOT_THERE) <= known
