# SPDX-License-Identifier: Apache-2.0
"""`intarsia tune-kernels`: tuned schedules are found, kept, used, shown, and right."""

import numpy as np
import onnx
import onnxruntime
import pytest

import intarsia
from intarsia.backends.registry import load_backends
from intarsia.bench.profile import profile_kernels
from intarsia.codegen.lower.schedules import choice_of
from intarsia.compiler import resolve_targets
from intarsia.errors import SettingError, TargetError
from intarsia.native import native_target
from intarsia.place.machine import Machine
from intarsia.place.request import Request
from intarsia.place.setting import make_setting
from intarsia.plan.lock import lock_plan, read_lock, write_lock
from intarsia.settings import Settings
from intarsia.tuning.kernels.tuning import tune_model_kernels

SHAPES = {
    "w0": (32, 3, 3, 3),
    "w1": (32, 32, 3, 3),
    "w2": (32, 1, 3, 3),
    "w3": (40, 32, 1, 1),
    "w4": (40, 10),
}
TEXT = """
g (float[1, 3, 17, 19] x) => (float[1, 10] y) <{weights}>
{{
    a = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w0)
    ar = Relu(a)
    b = Conv<pads=[1, 1, 1, 1]>(ar, w1)
    br = Relu(b)
    p = MaxPool<kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1>(br)
    c = Conv<pads=[1, 1, 1, 1], group=32>(p, w2)
    d = Conv(c, w3)
    e = GlobalAveragePool(d)
    f = Flatten(e)
    y = MatMul(f, w4)
}}
"""


@pytest.fixture(scope="module")
def model():
    """A network with a kernel of each family, with random weights."""
    weights = ", ".join(f"float{list(shape)} {name}" for name, shape in SHAPES.items())
    header = '<ir_version: 9, opset_import: ["" : 20]>'
    made = onnx.parser.parse_model(header + TEXT.format(weights=weights))
    rng = np.random.default_rng(7)
    for name, shape in SHAPES.items():
        array = rng.standard_normal(shape).astype(np.float32) * 0.1
        made.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return made


@pytest.fixture
def schedules(tmp_path, monkeypatch):
    """Tuned schedules of this test's own."""
    monkeypatch.setenv("INTARSIA_SCHEDULES", str(tmp_path / "schedules"))
    return tmp_path / "schedules"


class LastIsBest:
    """Finds the last candidate twice as fast as the others."""

    def __init__(self, specs):
        self.best = len(specs) - 1
        self.won.append(specs[-1])

    won = []  # noqa: RUF012 - what all of them noted

    def seconds(self, candidate):
        return 1e-3 if candidate == self.best else 2e-3

    def close(self):
        pass


def tune(model, target="llvm", contest=LastIsBest, pins=None, **options):
    backends = load_backends(Settings.from_environment())
    config = resolve_targets(target, None, backends, None)
    setting = make_setting(
        Request(model=model, pins=pins, num_threads=1), Machine(config, backends)
    )
    LastIsBest.won.clear()
    return tune_model_kernels(
        setting, tell=lambda moment: None, prepare=lambda cpu, threads: contest, **options
    )


def run(executable, x):
    y = executable(x)
    return np.asarray(y)


def image():
    return np.random.default_rng(1).standard_normal((1, 3, 17, 19)).astype(np.float32)


def test_tuned_schedules_are_used_shown_and_right(model, schedules):
    plain = intarsia.compile(model, "llvm", num_threads=1)
    results = tune(model)
    assert len(results) >= 5
    assert all(result.is_new and result.entry.choice for result in results)
    families = {result.kernel.split()[0] for result in results}
    assert {"conv", "depthwise", "pool", "gemm"} <= families
    assert {spec.algorithm for spec in LastIsBest.won} == {"direct", "F(2)"}

    tuned = intarsia.compile(model, "llvm", num_threads=1)
    x = image()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"x": x})
    for executable in (plain, tuned):
        found = run(executable, x)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    profile = profile_kernels(tuned, {"x": x}, threads=1, rounds=1)
    kinds = {row.kernel: row.schedule for row in profile.rows if row.nodes}
    assert kinds["winograd"] == kinds["depthwise"] == kinds["gemm"] == "tuned"
    before = profile_kernels(plain, {"x": x}, threads=1, rounds=1)
    assert {row.schedule for row in before.rows} == {"heuristic"}
    assert "tuned kernels" in str(tuned.artifacts[0].metadata)

    other = intarsia.compile(model, "llvm", num_threads=2)
    assert "tuned" not in str(other.artifacts[0].metadata)
    direct = intarsia.compile(model, "llvm -winograd=off", num_threads=1)
    assert "Winograd" not in str(direct.artifacts[0].metadata)


def test_a_second_run_goes_on_where_the_first_ended(model, schedules):
    class Interrupted(LastIsBest):
        def __init__(self, specs):
            if len(self.won) == 2:
                raise KeyboardInterrupt
            super().__init__(specs)

    first = tune(model, contest=Interrupted)
    assert [result.is_new for result in first] == [True, True] + [False] * (len(first) - 2)
    assert all(result.entry is None for result in first[2:])
    second = tune(model)
    assert [result.is_new for result in second] == [not result.is_new for result in first]
    assert [result.entry for result in second[:2]] == [result.entry for result in first[:2]]
    assert choice_of(LastIsBest.won[-1]) == second[-1].entry.choice
    assert not any(result.is_new for result in tune(model))
    assert all(result.is_new for result in tune(model, again=True))


def test_a_budget_is_for_all_targets(model, schedules):
    first, second = "llvm -winograd=off", "llvm -winograd=f2"
    pins = {"c": first, "d": second}
    seconds = {"budget": 3, "clock": lambda: len(LastIsBest.won)}
    results = tune(model, f"{first}, {second}", pins=pins, **seconds)
    assert len({result.target for result in results}) == 2
    assert sum(result.is_new for result in results) == 3


def test_a_locked_plan_takes_heuristics(model, schedules, tmp_path):
    plain = intarsia.compile(model, "llvm", num_threads=1)
    write_lock(lock_plan(plain.plan), tmp_path / "lock.json")
    tune(model)
    frozen = intarsia.compile(
        model, "llvm", num_threads=1, frozen=read_lock(tmp_path / "lock.json")
    )
    assert [a.payload for a in frozen.artifacts] == [a.payload for a in plain.artifacts]


def test_what_is_not_native_has_no_kernels(model, schedules):
    with pytest.raises(SettingError, match="no kernels to tune"):
        tune(model, "reference")
    with pytest.raises(TargetError, match="mcpu: the code could not run here"):
        tune(model, "llvm -mcpu=neoverse-n1")


def test_kernels_that_compiled_code_computes_by_tiles_are_not_tuned(
    model, schedules, tmp_path, monkeypatch
):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.setattr(native_target, "why_not_here", lambda cpu: "")
    target, found = "llvm -mcpu=sapphirerapids -precision=bf16", {}
    for tiles in ((), ("amx-bf16",)):
        monkeypatch.setattr(native_target, "usable_tiles", lambda *_, tiles=tiles: tiles)
        results = tune(model, target, again=True)
        found[tiles] = [one.kernel for one in results if "32x" in one.kernel]
    assert len(found["amx-bf16",]) < len(found[()])
    assert not set(found["amx-bf16",]) - set(found[()])
