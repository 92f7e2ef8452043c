# SPDX-License-Identifier: Apache-2.0
"""Each check fails on a backend that breaks what it promises, and says what is wrong."""

import os
import re
import threading

import pytest

from intarsia.testing import TOLERANCES, Status, case, fed, list_trials, weight
from intarsia.testing.subject import Subject
from intarsia.testing.trial import judge

FRESH = "save_and_run_in_a_fresh_process"
GRAPH = "random_graph_0"

FEW = (
    case("Relu", "plain", fed(2, 3), dtypes=("float32", "float64", "int32")),
    case("MatMul", "plain", fed(3, 5), weight(5, 40)),
    case("Add", "same", fed(2, 3), fed(2, 3), dtypes=("float32",)),
)

SABOTAGE = [
    ("WrongNumbers", "numbers", "Relu-plain-float32", r"Relu-plain float32 \[2,3\].*largest error"),
    ("WrongNumbers", "regions", "random_graph_0", "region of .*: output .* largest error"),
    ("WrongInSinglePrecision", "numbers", "Relu-plain-float64", "tolerance rtol 1e-09, atol 1e-10"),
    ("LeavesAnOutput", "regions", "two_outputs", "largest error inf"),
    ("WritesToInputs", "numbers", "Add-same-float32", "the step wrote to its input 'x0'"),
    ("FailsToRun", "numbers", "Add-same-float32", "a step raised ZeroDivisionError: in a step"),
    ("KeepsTheFirstInputs", "numbers", "Add-same-float32", "run 2 of one binding"),
    ("DeclaresAnotherDtype", "numbers", "Add-same-float32", r"outputs are \(y0: float64\[2,3\]\)"),
    ("SwapsOutputs", "regions", "two_outputs", "not those of the region"),
    ("NamesAnother", "numbers", "Add-same-float32", "names backend 'onnxruntime'"),
    ("RaisesInCompile", "numbers", "Add-same-float32", "compile raised ValueError: no such table"),
    ("RaisesInCompile", "oddities", "strings", "compile raised ValueError"),
    ("RaisesInRules", "oddities", "unknown_domain", "rules raised KeyError: 'Unheard'"),
    ("RefusesForNoReason", "numbers", "Add-same-float32", "refusal of Add gives no reason"),
    ("RefusesWithAWord", "oddities", "strings", "'because' is not a ReasonCode"),
    ("RefusesAnotherNode", "numbers", "Add-same-float32", "99, which is not a node's id"),
    ("TakesMoreThanItCompiles", "regions", "chain", "took it, but compile raised BackendError"),
    ("SharesState", "threads", "one_region_in_8_threads", "thread .* largest error"),
    ("CopiesConstants", "artifacts", "constants_of_MatMul", "the payload has 2.* bytes for 262144"),
    ("HidesConstants", "artifacts", "constants_of_Conv", "of which the artifact refers to 0"),
    ("StampsArtifacts", "artifacts", "deterministic", "gives two values of metadata"),
    ("LeaksWhenRun", "memory", "200_runs", "200 runs grow resident memory .* bound is 8 MiB"),
    ("LeaksWhenLoaded", "memory", "20_loads", "20 times loading and unloading grow"),
    ("KeepsFilesOpen", "loads", "1000_loads", r"leave \d{3,} more open files"),
    ("KeepsThreads", "loads", "1000_loads", r"leave \d\d more threads"),
    ("KeepsMaps", "loads", "1000_loads", "leave .* more maps of memory"),
    ("LeaksALittle", "loads", "1000_loads", "grow resident memory by .* bound is 8 MiB"),
    ("UsesAnotherThread", "limits", "one_thread", "with one thread, another one computes for"),
    ("CountsInSixteenBits", "limits", "Add-rows-0", "output 'y0' .* largest error"),
    ("FailsOnManyOperands", "limits", "Concat-operands-5", "load raised OverflowError"),
    (
        "DiesOfDamage",
        "faults",
        "damaged_artifacts",
        r"artifact \(empty\) took the process: .*SIGABRT",
    ),
    (
        "RaisesOfDamage",
        "faults",
        "damaged_artifacts",
        "raised KeyError: 'model'; raise a BackendError",
    ),
    (
        "BreaksElsewhere",
        "processes",
        FRESH,
        "BackendError: its handles",
    ),
    ("DiesElsewhere", "processes", FRESH, "crashed: .*SIGABRT"),
    ("HidesConstants", "processes", FRESH, "KeyError"),
    ("ReadsBlocksInOrder", "borders", GRAPH, "border .*nchw16c.*: output .* largest error"),
    ("IgnoresTheBorder", "borders", GRAPH, "the artifact's (inputs|outputs) are"),
    ("ListsAnUnheardOfLayout", "borders", GRAPH, r"'x' is listed as hwcn, which float32.* cannot"),
    ("ListsThePlainBorder", "borders", GRAPH, "lists the plain border"),
    ("ListsOneSide", "borders", GRAPH, "0 states are listed for . tensors"),
    ("ListsAnotherMemory", "borders", GRAPH, "'x' is .* and is listed as"),
    ("ListsByChance", "borders", GRAPH, "other borders when it is asked again"),
    (
        "TakesUnheardOfLayouts",
        "borders",
        "impossible_layouts",
        "an input of .* as unheard-of raised nothing",
    ),
    ("FailsOnOtherLayouts", "borders", "impossible_layouts", "raised KeyError: 'nchw8c'; raise a"),
    ("HasABadName", "contract", "name", "name is 'My Backend'"),
    ("HasNoKinds", "contract", "kinds", r"kinds is \(\)"),
    ("HasAnUnknownKind", "contract", "kinds", "'unheard-of' is not known"),
    ("LacksAMember", "contract", "members", "the backend lacks check of Backend"),
    ("ChangesItsVersion", "contract", "version", "not one text"),
    ("RaisesInDetect", "contract", "detect", "detect raised OSError: no driver"),
    ("DetectsAnother", "contract", "detect", "found 'fake', of a kind that is not in kinds"),
    ("ChangesItsMind", "contract", "rules", "refuse differently when they are asked again"),
    ("IgnoresOptions", "contract", "device", "the device has options"),
    ("YieldsWithoutAWord", "contract", "yields", "say why in words"),
    ("EstimatesInWords", "contract", "executable", "returned 'fast', neither a Cost nor None"),
    ("RefusesEverything", "contract", "takes_something", "refuse every case of the table"),
    ("LeavesMemoryOpen", "devices", "buffers", "__array__: the host could read it"),
    ("LosesIntegers", "devices", "round_trip-int64", r"a round trip of t: int64\[3,5,7\]"),
    ("OverlapsTensors", "devices", "two_tensors_in_one_block", r"read \[\[2.0, .*written \[\[1.0"),
]


@pytest.fixture(autouse=True)
def leaks_are_freed():
    yield
    import saboteurs

    for kept in saboteurs.LEAKED:
        if isinstance(kept, int):
            os.close(kept)
    saboteurs.LEAKED.clear()
    saboteurs.RELEASED.set()
    saboteurs.RELEASED = threading.Event()


@pytest.mark.parametrize(
    ("saboteur", "check", "name", "says"), SABOTAGE, ids=[f"{s[0]}-{s[2]}" for s in SABOTAGE]
)
def test_a_broken_promise_is_found(saboteur, check, name, says):
    (trial,) = (trial for trial in list_trials([check], FEW) if trial.name == name)
    verdict = judge(Subject(f"saboteurs:a_{saboteur}", None, TOLERANCES), trial)
    assert verdict.status is Status.FAILED, verdict
    assert re.search(says, verdict.message, re.DOTALL), verdict.message


def test_a_sound_backend_with_blocked_borders_passes():
    subject = Subject("saboteurs:a_TakesBlocks", None, TOLERANCES)
    verdicts = [judge(subject, trial) for trial in list_trials(["borders"])]
    assert {verdict.status for verdict in verdicts} == {Status.PASSED}


def test_a_backend_without_other_borders_is_skipped():
    subject = Subject("intarsia.backends.reference:BACKEND", None, TOLERANCES)
    verdicts = [judge(subject, trial) for trial in list_trials(["borders"])]
    assert {verdict.status for verdict in verdicts} == {Status.SKIPPED}
    assert "no `states`" in verdicts[0].message
