# SPDX-License-Identifier: Apache-2.0
"""Programs that are kept: found again, never mistaken, never used damaged."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data, set_external_data

import intarsia
import intarsia.place.build
import intarsia.tuning.tuner
from intarsia.accepted import installed
from intarsia.accepted import programs as module
from intarsia.accepted.programs import copy_package, look_up
from intarsia.backends.registry import load_backends
from intarsia.cost.database import CostDatabase
from intarsia.errors import BackendError, PackageError
from intarsia.place.request import Request
from intarsia.settings import Settings
from intarsia.target import tags
from intarsia.target.registry import TagTable

TEXT = """
<ir_version: 9, opset_import: ["" : 20]>
small (float[2,8] x) => (float[2,8] y) {
    [one] a = Relu(x)
    [two] b = Add(a, x)
    [three] y = Relu(b)
}
"""
TARGET = "fake -cost=*:1e-3"


@pytest.fixture
def cache(own_cache, monkeypatch):
    """The folder of programs of a cache of the test's own."""
    monkeypatch.setenv("INTARSIA_PROGRAMS", "1")
    return own_cache / "programs"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


@pytest.fixture
def tune(file, tmp_path, monkeypatch):
    """Tunes the model; `made` has the calls that had to build a program."""
    made = []

    def run(**options):
        database = str(tmp_path / "costs.sqlite")
        return intarsia.tune(file, TARGET, costs=database, num_threads=1, **options)

    built = intarsia.tuning.tuner.tuned_choice

    def count(*arguments, **options):
        made.append(arguments)
        return built(*arguments, **options)

    monkeypatch.setattr(intarsia.tuning.tuner, "tuned_choice", count)
    run.made = made
    run.costs = str(tmp_path / "costs.sqlite")
    return run


def _look_up(model, target=TARGET, threads=1, **more):
    backends = load_backends(Settings.from_environment())
    request = Request(model=model, target=target, num_threads=threads, backends=backends, **more)
    return look_up(request)


def _file(model, *arguments, **more):
    """Return where the program of a request is kept, or would be."""
    return _look_up(model, *arguments, **more).file


def _tuned(model, costs):
    """Return the program of the accepted plan, if it was kept."""
    return _look_up(model, placement="collage", costs=costs).program


def test_the_same_request_finds_its_program(tune, cache, random_feeds, file, evaluate, assert_same):
    first = tune()
    assert len(list(cache.iterdir())) == 2
    again = tune()
    assert len(tune.made) == 1
    assert again.explain().tuning == replace(first.explain().tuning, is_reused=True)
    assert again.placement == first.placement
    model = onnx.load(file)
    feeds = random_feeds(model)
    assert_same(again.run(feeds), evaluate(model, feeds))
    assert tune(resume=True).placement == first.placement
    assert len(tune.made) == 2


def test_a_start_that_finds_it_reads_no_model_and_writes_the_same_package(file, tmp_path, cache):
    code = (
        "import sys\nfrom intarsia.__main__ import main\ncode = main(sys.argv[2:])\n"
        "sys.exit(code or int(sys.argv[1]) * ('intarsia.graph.load' in sys.modules))\n"
    )
    command = ["tune", str(file), "-t", TARGET, "--threads", "1"]
    command += ["--database", str(tmp_path / "costs.sqlite"), "-o"]
    for number, name in enumerate(("one", "two")):
        package = tmp_path / f"{name}.intarsia"
        arguments = [sys.executable, "-c", code, str(number), *command, str(package)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("accepted before" in done.stdout) is (name == "two")
    assert (tmp_path / "one.intarsia").read_bytes() == (tmp_path / "two.intarsia").read_bytes()


def test_without_its_verdict_it_is_not_used(tune, cache, file):
    tune()
    assert _tuned(file, tune.costs) is not None
    assert _tuned(file, f"{tune.costs}.other") is None
    Path(tune.costs).unlink()
    assert _tuned(file, tune.costs) is None


def test_a_program_of_another_plan_is_not_used(tune, cache):
    tune()
    (record,) = cache.glob("*.json")
    key = msgspec.json.decode(record.read_bytes(), type=module._Record).key
    with CostDatabase.open(tune.costs) as database:
        verdict = database.verdict(key)
        half = replace(verdict.regions[0], nodes=verdict.regions[0].nodes[:1])
        rest = replace(verdict.regions[0], nodes=verdict.regions[0].nodes[1:])
        database.save_verdict(key, replace(verdict, regions=(half, rest)))
    assert len(tune().placement.regions) == 2
    assert len(tune.made) == 2
    assert len(tune().placement.regions) == 2  # and that one is kept now
    assert len(tune.made) == 2


def test_a_damaged_program_is_made_anew(tune, cache, file):
    tune()
    (package,), (record,) = cache.glob("*.intarsia"), cache.glob("*.json")
    sound, key = package.read_bytes(), record.read_bytes()
    at_payload = sound.index(b"fake", 4096)
    for content in (b"", sound[:-64], sound[:at_payload] + b"!" + sound[at_payload + 1 :]):
        record.write_bytes(key)
        package.write_bytes(content)
        assert _tuned(file, tune.costs) is None
        assert not package.exists()
    record.write_bytes(b"{")
    package.write_bytes(sound)
    assert _tuned(file, tune.costs) is None
    assert tune().placement.node_count == 3
    assert len(tune.made) == 2
    assert _tuned(file, tune.costs).placement.node_count == 3


def test_other_requests_are_told_apart(file, cache, monkeypatch):
    def changed(old, new):
        path = file.with_name("other.onnx")
        onnx.save(onnx.parser.parse_model(TEXT.replace(old, new)), path)
        return path

    names = [
        _file(file),
        _file(changed("[one]", "[first]")),
        _file(changed("Add(a, x)", "Mul(a, x)")),
        _file(file, "fake -cost=*:2e-3"),
        _file(file, threads=2),
        _file(file, objective="throughput"),
        _file(file, pins={"one": "fake"}),
        _file(file, shapes={"x": (2, 8)}),
        _file(file, exclude=("fake:Relu",)),
        _file(file, placement="greedy"),
        _file(file, strict=True),
    ]
    monkeypatch.setattr("intarsia.backends.sources.code_version", lambda *arguments: "another")
    names.append(_file(file))
    monkeypatch.setattr("intarsia.codegen.sources.source_digest", lambda modules: "another")
    names.append(_file(file))
    assert len(set(names)) == len(names)
    two = [("one", "fake"), ("two", "fake")]
    pinned = [_file(file, pins=dict(pins)) for pins in (two, two[::-1])]
    assert pinned[0] != pinned[1]
    nothing = {"shapes": {}, "pins": {}, "exclude": [], "layers": {}}
    assert _file(file, **nothing) == _file(file)


def test_what_the_names_of_the_user_mean_counts(file, cache, tmp_path, monkeypatch):
    names = [_file(file)]
    monkeypatch.chdir(tmp_path)
    for target in ("fake", "fake -fusion=0.5"):
        registry = TagTable(lambda name: name == "fake")
        monkeypatch.setattr(tags.REGISTRY, "tags", registry)
        (tmp_path / "intarsia.toml").write_text(f'[tags]\nmine = "{target}"\n')
        names.append(_file(file))
    registry.add("yours", "fake")
    names.append(_file(file))
    assert len(set(names)) == len(names)


def test_a_program_of_a_model_that_changed_meanwhile_is_not_kept(
    tune, cache, file, monkeypatch, caplog
):
    caplog.set_level("INFO", logger="intarsia")
    built = intarsia.tuning.tuner.tuned_choice

    def change(*arguments, **options):
        onnx.save(onnx.parser.parse_model(TEXT.replace("Add(a, x)", "Mul(a, x)")), file)
        return built(*arguments, **options)

    monkeypatch.setattr(intarsia.tuning.tuner, "tuned_choice", change)
    assert tune().explain().tuning is not None
    assert not list(cache.glob("*.intarsia"))
    assert "its model file has changed meanwhile" in caplog.text


def test_a_program_that_another_process_removed_is_no_error(tune, cache, file, tmp_path):
    tune()
    kept = _file(file)
    with pytest.raises(PackageError, match="cannot write"):
        copy_package(kept, tmp_path / "none" / "out.intarsia")
    assert copy_package(kept, tmp_path / "out.intarsia")
    assert (tmp_path / "out.intarsia").read_bytes() == kept.read_bytes()
    kept.unlink()
    assert not copy_package(kept, tmp_path / "again.intarsia")
    assert sorted(path.name for path in tmp_path.glob("*again*")) == []


def test_weights_beside_the_model_count(tmp_path, cache):
    weights = onnx.numpy_helper.from_array(np.ones((8, 64), np.float32), "w")
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[2,8] x) => (float[2,64] y) '
        "{ y = MatMul(x, w) }"
    )
    model.graph.initializer.append(weights)
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    path = tmp_path / "large.onnx"
    onnx.save(model, path)
    before = _file(path)
    assert _file(path) == before
    data = tmp_path / "weights.bin"
    data.write_bytes(np.zeros((8, 64), np.float32).tobytes())
    assert _file(path) != before
    data.unlink()
    assert _file(path) is None


def test_weights_that_change_places_behind_links_count(tmp_path, cache, parse_model):
    weights = "<float[2] v = {1, 1}, float[2] w = {2, 2}>"
    model = parse_model(
        f"g (float[2] x) => (float[2] y) {weights} {{ a = Add(x, v) y = Mul(a, w) }}"
    )
    del model.graph.initializer[:]
    for name, number in (("v", 1), ("w", 2)):
        data = np.full(2, number, np.float32)
        (tmp_path / f"blob{number}").write_bytes(data.tobytes())
        tensor = onnx.numpy_helper.from_array(data, name)
        set_external_data(tensor, location=f"{name}.bin")
        tensor.ClearField("raw_data")
        model.graph.initializer.append(tensor)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    found = set()
    for first, second in ((1, 2), (2, 1), (1, 1)):
        for name, number in (("v", first), ("w", second)):
            link = tmp_path / f"{name}.bin"
            link.unlink(missing_ok=True)
            link.symlink_to(f"blob{number}")
        found.add(_file(path))
    assert len(found) == 3
    assert None not in found


def test_what_cannot_be_told_is_not_kept(file, cache, monkeypatch, tmp_path):
    model = onnx.load(file)
    assert _file(model) is None
    assert _file(tmp_path / "none.onnx") is None
    assert _file(file.read_bytes()) is not None
    monkeypatch.setenv("INTARSIA_DUMP", str(tmp_path))
    assert _file(file) is None


def test_programs_are_bounded(tune, cache, monkeypatch):
    monkeypatch.setattr(module, "LIMIT_BYTES", 0)
    tune()
    assert not list(cache.glob("*.intarsia"))
    monkeypatch.setattr(module, "LIMIT_BYTES", 1 << 40)
    tune()
    tune()
    assert len(tune.made) == 2
    assert {path.suffix for path in cache.iterdir()} == {".intarsia", ".json"}


def test_a_plan_that_was_not_accepted_is_not_kept(file, tmp_path, cache):
    def interrupt(moment):
        raise KeyboardInterrupt

    options = {"costs": str(tmp_path / "costs.sqlite"), "num_threads": 1, "progress": interrupt}
    exe = intarsia.tune(file, TARGET, **options)
    assert exe.explain().tuning.is_interrupted
    assert not cache.exists()


@pytest.fixture
def compile_small(file, cache, monkeypatch):
    """Compiles the model; `made` has the calls that had to place it and build a program."""
    made = []
    built = intarsia.place.build.build_program

    def count(setting, choice, **options):
        if choice.calls is None:
            made.append(choice)
        return built(setting, choice, **options)

    def run(model=file, target=TARGET, **options):
        return intarsia.compile(model, target, num_threads=1, **options)

    monkeypatch.setattr(intarsia.place.build, "build_program", count)
    run.made = made
    return run


def test_what_was_compiled_is_found(compile_small, file, evaluate, random_feeds, assert_same):
    first = compile_small()
    again = compile_small()
    assert len(compile_small.made) == 1
    assert again.plan == first.plan
    assert again.placement == first.placement
    model = onnx.load(file)
    feeds = random_feeds(model)
    assert_same(again.run(feeds), evaluate(model, feeds))
    for _ in range(2):
        intarsia.InferenceSession(file.read_bytes(), targets=TARGET, num_threads=1)
    assert len(compile_small.made) == 2
    assert len(list(file.parent.glob("cache/programs/*.intarsia"))) == 2


def test_another_model_or_request_is_compiled(
    compile_small, file, evaluate, random_feeds, assert_same
):
    compile_small()
    other = file.with_name("other.onnx")
    other.write_bytes(file.read_bytes())
    compile_small(other)  # the same bytes elsewhere
    assert len(compile_small.made) == 1
    model = onnx.parser.parse_model(TEXT.replace("Add(a, x)", "Mul(a, x)"))
    onnx.save(model, file)
    feeds = random_feeds(model)
    assert_same(compile_small().run(feeds), evaluate(model, feeds))
    compile_small(placement="greedy")
    compile_small(strict=True)
    compile_small(target="fake -cost=*:2e-3")
    compile_small(pins={"one": "fake"})
    assert len(compile_small.made) == 6


def test_who_wants_no_cache_gets_none(compile_small, cache, monkeypatch):
    compile_small(cache=False)
    assert not cache.exists()
    compile_small()
    compile_small(cache=False)
    monkeypatch.setenv("INTARSIA_PROGRAMS", "0")
    compile_small()
    assert len(compile_small.made) == 4
    compile_small(cache=True)
    assert len(compile_small.made) == 4


def test_an_accepted_plan_takes_the_place_of_what_was_compiled(
    compile_small, file, tmp_path, monkeypatch
):
    database = str(tmp_path / "costs.sqlite")
    monkeypatch.setenv("INTARSIA_COSTS", database)
    assert compile_small().explain().tuning is None
    tuned = intarsia.tune(file, TARGET, num_threads=1)
    found = compile_small()
    assert found.explain().tuning.summary == tuned.explain().tuning.summary
    assert len(compile_small.made) == 1
    Path(database).unlink()
    assert compile_small().explain().tuning is None
    assert compile_small().explain().tuning is None
    assert len(compile_small.made) == 2


def test_a_damaged_or_refused_program_is_compiled_anew(compile_small, cache, monkeypatch):
    compile_small()
    (package,) = cache.glob("*.intarsia")
    sound = package.read_bytes()
    at_payload = sound.index(b"fake", 4096)
    package.write_bytes(sound[:at_payload] + b"!" + sound[at_payload + 1 :])
    compile_small()
    assert len(compile_small.made) == 2
    assert package.read_bytes() == sound
    load, refused = module.load_regions, []

    def refuse(*arguments):
        refused.append(arguments)
        raise BackendError("the device is gone", backend="fake")

    monkeypatch.setattr(module, "load_regions", refuse)
    compile_small()
    assert refused
    assert len(compile_small.made) == 3
    monkeypatch.setattr(module, "load_regions", load)
    compile_small()
    assert len(compile_small.made) == 3


def test_a_program_whose_compilation_failed_in_part_is_not_kept(compile_small, cache):
    target = "fake -fault=compile -fault-ops=Add, reference"
    for _ in range(2):
        assert len(compile_small(target=target).placement.regions) > 1
    assert len(compile_small.made) == 2


def test_warnings_are_given_again(compile_small, caplog):
    messages = []
    for _ in range(2):
        caplog.clear()
        compile_small(target="fake -ops=Relu, reference")
        messages.append([record.getMessage() for record in caplog.records])
    assert len(compile_small.made) == 1
    assert messages[0] == messages[1]
    assert any("Add" in message for message in messages[0])


@pytest.mark.parametrize("setup", ["", "logging.basicConfig()"])
def test_a_warning_is_seen_once_whether_or_not_somebody_handles_it(setup, file, cache):
    code = (
        f"import intarsia, logging\n{setup}\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(3) as pool:\n"
        f"    compile = lambda at: intarsia.compile({str(file)!r}, at + ', reference')\n"
        "    list(pool.map(compile, ['fake -ops=Relu', 'fake', 'fake -cost=*:1']))\n"
    )
    for _ in range(2):  # what is compiled, what is kept
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr.count("2 of 3 nodes on fake") == 1
        assert len(done.stderr.splitlines()) == 1


def test_several_at_once_do_one_another_no_harm(compile_small, cache, file):
    feeds = {"x": np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)}
    expected = compile_small(cache=False).run(feeds)["y"]
    with ThreadPoolExecutor(4) as pool:
        programs = list(pool.map(lambda _: compile_small(), range(8)))
    assert all((program.run(feeds)["y"] == expected).all() for program in programs)
    assert {path.suffix for path in cache.iterdir()} == {".intarsia", ".json"}


HEAVY = (
    *("google", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "openvino", "ortools"),
    *("pyopencl", "rich", "scipy", "sqlalchemy", "sympy", "typer"),
)


UNUSED = set(HEAVY) - {"google", "onnx", "onnx_ir"}
"""What a first start does without, too, if native code takes the whole model."""


def test_a_start_that_finds_its_program_imports_little(file, cache):
    code = (
        "import sys\nimport intarsia\n"
        f"intarsia.InferenceSession({str(file)!r})\n"
        "loaded = [n for n, m in sys.modules.items() if type(m).__name__ != '_Deferred']\n"
        "ours = {name for name in loaded if name.startswith('intarsia.')}\n"
        "print(len(loaded), *sorted(ours | {name.split('.')[0] for name in loaded}))\n"
    )
    for is_warm in (False, True):
        arguments = [sys.executable, "-c", code]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        count, *names = done.stdout.split()
        assert (set(HEAVY) & set(names) == set()) is is_warm
        assert not UNUSED & set(names)
    lowering = [name for name in names if name.startswith("intarsia.codegen.emit")]
    deciding = [
        name for name in names if name.startswith(("intarsia.graph.load", "intarsia.passes"))
    ]
    assert not lowering + deciding
    assert int(count) < 460


def test_what_is_installed_is_asked_again_when_something_changes(cache, tmp_path, monkeypatch):
    def recall(key):
        return installed.recall(key, Settings.from_environment())

    def remember(key, digest):
        installed.remember(key, digest, Settings.from_environment())

    remember("key", "0" * 32)
    assert recall("key") == "0" * 32
    assert recall("other") is None
    monkeypatch.setenv("INTARSIA_OPENCL_DEVICES", "0/2")
    assert recall("key") is None
    monkeypatch.delenv("INTARSIA_OPENCL_DEVICES")
    monkeypatch.setenv("POCL_CACHE_DIR", "/elsewhere")  # as a driver's loading sets it
    assert recall("key") == "0" * 32
    for variable in ("OCL_ICD_VENDORS", "POCL_DEVICES", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "another")
            assert recall("key") is None
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    remember("key", "1" * 32)
    (packages / "new.py").touch()
    assert recall("key") is None


FREE = """
<ir_version: 9, opset_import: ["" : 20]>
free (float[rows,8] x) => (float[rows,4] y) {
    a = MatMul(x, w)
    y = Relu(a)
}
"""


def free_model(scale=1.0):
    model = onnx.parser.parse_model(FREE)
    weights = np.arange(32, dtype=np.float32).reshape(8, 4) * scale - 10
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


@pytest.fixture
def free_file(tmp_path):
    path = tmp_path / "free.onnx"
    onnx.save(free_model(), path)
    return path


@pytest.fixture
def compile_free(compile_small, free_file):
    """Compiles a model with free dimensions; `made` as of `compile_small`."""

    def run(model=free_file, target="onnxruntime", **options):
        return compile_small(model, target, **options)

    run.made = compile_small.made
    return run


def _rows(count):
    return {"x": np.linspace(-1, 1, 8 * count, dtype=np.float32).reshape(count, 8)}


def test_a_program_for_all_sizes_is_found_by_a_later_process(
    free_file, cache, evaluate, assert_same, tmp_path
):
    code = (
        "import sys, numpy as np, intarsia\n"
        "exe = intarsia.compile(sys.argv[1], sys.argv[2], num_threads=1)\n"
        "exe.generic.placement\n"
        "x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)\n"
        "np.save(sys.argv[3], exe.run({'x': x})['y'])\n"
        "print('intarsia.graph.load' in sys.modules)\n"
    )
    outputs = []
    for number in range(2):
        output = tmp_path / f"{number}.npy"
        command = [sys.executable, "-c", code, str(free_file), "llvm", str(output)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(number == 0)]  # the second reads no model
        outputs.append({"y": np.load(output)})
    assert_same(outputs[1], outputs[0])
    assert_same(outputs[1], evaluate(free_model(), _rows(5)))
    assert len(list(cache.glob("*.intarsia"))) == 1


def test_a_found_program_for_all_sizes_has_what_was_asked_for_beside_it(
    compile_free, cache, evaluate, assert_same, tmp_path
):
    first = compile_free()
    again = compile_free(sizes={"rows": [2, 3]}, frozen=True)
    assert len(compile_free.made) == 3  # for two sizes, and not for all of them again
    assert again.sizes == ({"rows": 2}, {"rows": 3})
    assert again.signature == first.signature
    assert again.targets == first.targets
    assert len(list(cache.glob("*.intarsia"))) == 1
    for rows in (2, 7):
        assert_same(again.run(_rows(rows)), evaluate(free_model(), _rows(rows)))
    again.save(tmp_path / "free.intarsia")  # with the model, which the kept one leaves out
    loaded = intarsia.load(tmp_path / "free.intarsia", num_threads=1)
    assert loaded.specialise({"rows": 5}).inputs[0].shape == (5, 8)
    assert_same(loaded.run(_rows(4)), evaluate(free_model(), _rows(4)))


def test_a_found_program_for_all_sizes_follows_what_is_asked_for(
    compile_free, free_file, evaluate, assert_same, cache, tmp_path, monkeypatch
):
    compile_free()
    monkeypatch.setenv("INTARSIA_COSTS", str(tmp_path / "costs.sqlite"))
    intarsia.tune(onnx.parser.parse_model(TEXT), TARGET, num_threads=1)  # it has no costs
    made = len(compile_free.made)
    compile_free()
    assert len(compile_free.made) == made
    others = [{"shapes": {"rows": "1..8"}}, {"placement": "greedy"}, {"strict": True}]
    for number, other in enumerate(others, made + 1):
        compile_free(**other)
        assert len(compile_free.made) == number
    onnx.save(free_model(2.0), free_file)
    assert_same(compile_free().run(_rows(3)), evaluate(free_model(2.0), _rows(3)))
    assert len(compile_free.made) == made + 4


def test_a_damaged_program_for_all_sizes_is_compiled_anew(compile_free, cache):
    compile_free()
    (package,) = cache.glob("*.intarsia")
    sound = package.read_bytes()
    package.write_bytes(sound[:-64])
    compile_free()
    assert len(compile_free.made) == 2
    assert package.read_bytes() == sound


def test_a_package_without_its_model_is_frozen(compile_free, cache, evaluate, assert_same):
    compile_free()
    (package,) = cache.glob("*.intarsia")
    loaded = intarsia.load(package, num_threads=1)
    assert_same(loaded.run(_rows(6)), evaluate(free_model(), _rows(6)))
    with pytest.raises(PackageError, match="the model was not loaded"):
        loaded.save(package.with_name("other.intarsia"))
