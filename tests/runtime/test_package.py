# SPDX-License-Identifier: Apache-2.0
"""Packages: what is saved is what runs elsewhere, and what is damaged is refused."""

import dataclasses
import random
import subprocess
import sys
import zipfile

import msgspec
import numpy as np
import onnx
import pytest

import intarsia
from intarsia.backends.registry import collect
from intarsia.errors import BackendError, IntarsiaError, PackageError
from intarsia.runtime import archive
from intarsia.runtime.archive import write_archive
from intarsia.runtime.package import MANIFEST, SEAL

TARGETS = (
    "reference",
    "onnxruntime",
    "openvino, onnxruntime",
    "fake, reference",
    "fake:0 -ops=Relu, fake:1 -ops=Tanh, openvino -precision=f32, onnxruntime",
)


@pytest.fixture(scope="module")
def weighted_model(parse_model):
    """A model with Unicode names and a weight that is large enough to be a blob."""
    model = parse_model("""
        g (float[2,64] eingang, float[64,64] w) => (float[2,64] ausgang, float[2] fest)
        <float[2] fest = {1.0, 2.0}>
        { [erste] a = MatMul(eingang, w) [zweite] b = Relu(a) ausgang = Tanh(b) }""")
    weights = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32) / 8
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    renames = {"eingang": "größe-入力", "ausgang": "ausgäng ∂/☃", "w": "gewicht/ß"}
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [renames.get(name, name) for name in names]
        node.name = f"knoten-{node.name}-é"
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = renames.get(value.name, value.name)
    return model


@pytest.fixture(scope="module")
def package(weighted_model, backends, tmp_path_factory):
    """A mixed package and its bytes."""
    path = tmp_path_factory.mktemp("package") / "m.intarsia"
    intarsia.compile(
        weighted_model, "fake -ops=Relu, onnxruntime", num_threads=1, backends=backends
    ).save(path)
    return path


def rewrite(source, destination, change=lambda name, data: data):
    """Write a package again, entry by entry."""
    with zipfile.ZipFile(source) as old:
        changed = [(name, change(name, old.read(name))) for name in old.namelist()]
    write_archive(destination, [(n, memoryview(data)) for n, data in changed if data is not None])


def with_manifest(source, destination, change):
    """Write a package again with another manifest."""

    def edit(name, data):
        if name != MANIFEST:
            return data
        manifest = msgspec.json.decode(data)
        change(manifest)
        return msgspec.json.encode(manifest)

    rewrite(source, destination, edit)


@pytest.mark.parametrize("target", TARGETS)
def test_a_package_runs_like_what_was_saved(
    target, weighted_model, random_feeds, evaluate, assert_same, backends, tmp_path
):
    path = tmp_path / "größe ☃.intarsia"
    saved = intarsia.compile(weighted_model, target, num_threads=1, backends=backends)
    saved.save(path)
    loaded = intarsia.load(path, num_threads=1, backends=backends)
    assert loaded.plan == saved.plan
    assert str(loaded.explain()) == str(saved.explain())
    for seed in range(2):
        feeds = random_feeds(weighted_model, seed)
        outputs = loaded.run(feeds)
        assert_same(outputs, evaluate(weighted_model, feeds), rtol=1e-4)
        assert_same(outputs, saved.run(feeds), rtol=0)
    again = tmp_path / "again.intarsia"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_a_package_is_self_contained(
    weighted_model, random_feeds, evaluate, assert_same, backends, tmp_path
):
    model, path = tmp_path / "model.onnx", tmp_path / "m.intarsia"
    copy = onnx.ModelProto()
    copy.CopyFrom(weighted_model)  # `onnx.save` takes the data out of what it saves
    onnx.save(
        copy,
        model,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=64,
        convert_attribute=False,
    )
    reread = onnx.load(model)
    intarsia.compile(model, "openvino, onnxruntime", backends=backends).save(path)
    model.unlink()
    (tmp_path / "weights.bin").unlink()
    moved = tmp_path / "elsewhere" / "n.intarsia"
    moved.parent.mkdir()
    path.rename(moved)
    feeds = random_feeds(reread)
    loaded = intarsia.load(moved, backends=backends)
    assert_same(loaded.run(feeds), evaluate(reread, feeds), rtol=1e-4)
    assert str(tmp_path).encode() not in moved.read_bytes()


def test_constants_are_stored_once_and_aligned(package):
    with zipfile.ZipFile(package) as file:
        infos = file.infolist()
        data = package.read_bytes()
        sizes = [info.file_size for info in infos if info.filename.startswith("constants/")]
    assert sorted(sizes) == [8, 64 * 64 * 4]
    for info in infos:
        name_bytes = len(info.filename.encode())
        extra_bytes = int.from_bytes(
            data[info.header_offset + 28 : info.header_offset + 30], "little"
        )
        assert (info.header_offset + 30 + name_bytes + extra_bytes) % 4096 == 0
        assert info.compress_type == zipfile.ZIP_STORED


def test_saving_twice_gives_the_same_bytes(weighted_model, backends, tmp_path):
    for name in ("a", "b"):
        intarsia.compile(weighted_model, TARGETS[-1], num_threads=1, backends=backends).save(
            tmp_path / name
        )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_saving_replaces_whole_or_not_at_all(weighted_model, backends, tmp_path, monkeypatch):
    exe = intarsia.compile(weighted_model, "onnxruntime", backends=backends)
    path = tmp_path / "m.intarsia"
    path.write_bytes(b"older")

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(archive, "_directory", fail)
        with pytest.raises(PackageError, match="No space left"):
            exe.save(path)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]
    exe.save(path)
    assert list(tmp_path.iterdir()) == [path]
    intarsia.load(path, backends=backends)


def test_a_loaded_package_may_be_overwritten(
    weighted_model, random_feeds, evaluate, assert_same, backends, tmp_path
):
    path = tmp_path / "m.intarsia"
    exe = intarsia.compile(weighted_model, "onnxruntime", backends=backends)
    exe.save(path)
    loaded = intarsia.load(path, backends=backends)
    loaded.save(path)
    path.unlink()
    feeds = random_feeds(weighted_model)
    assert_same(loaded.run(feeds), evaluate(weighted_model, feeds), rtol=1e-4)


def test_saving_into_no_folder_is_an_error(weighted_model, backends, tmp_path):
    exe = intarsia.compile(weighted_model, "reference", backends=backends)
    with pytest.raises(PackageError, match="cannot write"):
        exe.save(tmp_path / "missing" / "m.intarsia")


def test_text_constants_cannot_be_saved_and_say_so(parse_model, backends, tmp_path):
    model = parse_model(
        'g (float[2] x) => (float[2] y, string[1] s) <string[1] s = {"a"}> { y = Neg(x) }'
    )
    exe = intarsia.compile(model, "reference", backends=backends)
    with pytest.raises(PackageError, match="'s' holds text"):
        exe.save(tmp_path / "m.intarsia")


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip" * 100, b"\0" * 5000])
def test_what_is_no_zip_is_no_package(content, backends, tmp_path):
    path = tmp_path / "m.intarsia"
    path.write_bytes(content)
    with pytest.raises(PackageError, match="not a package") as caught:
        intarsia.load(path, backends=backends)
    assert caught.value.hint


def test_a_missing_file_a_folder_and_another_zip_are_no_packages(backends, tmp_path):
    with pytest.raises(PackageError, match="there is no file"):
        intarsia.load(tmp_path / "m.intarsia", backends=backends)
    with pytest.raises(PackageError, match="not a package"):
        intarsia.load(tmp_path, backends=backends)
    write_archive(tmp_path / "z", [("readme", memoryview(b"hello"))])
    with pytest.raises(PackageError, match="a zip file, but not a package"):
        intarsia.load(tmp_path / "z", backends=backends)


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_found_or_harmless(
    seed, package, weighted_model, random_feeds, evaluate, assert_same, backends, tmp_path
):
    rng = random.Random(seed)
    data = bytearray(package.read_bytes())
    with zipfile.ZipFile(package) as file:
        headers = [info.header_offset for info in file.infolist()]
        directory = file.start_dir
    if seed % 4 == 0:  # anywhere
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif seed % 4 == 1:
        del data[rng.randrange(len(data)) :]
    elif seed % 4 == 2:  # an entry's header
        data[rng.choice(headers) + rng.randrange(46)] ^= 1 << rng.randrange(8)
    else:  # the directory, which is where a zip is fragile
        for _ in range(3):
            data[rng.randrange(directory, len(data))] = rng.randrange(256)
    path = tmp_path / "damaged.intarsia"
    path.write_bytes(data)
    try:
        exe = intarsia.load(path, backends=backends)
    except PackageError:
        return
    feeds = random_feeds(weighted_model)
    assert_same(exe.run(feeds), evaluate(weighted_model, feeds), rtol=1e-4)


def set_version(manifest):
    manifest["format_version"] = 999


def drop_version(manifest):
    del manifest["format_version"]


def move_out_of_arena(manifest):
    tensors = manifest["plan"]["tensors"]
    next(t for t in tensors if t["storage"] == "arena")["offset"] = 1 << 40


def move_before_arena(manifest):
    tensors = manifest["plan"]["tensors"]
    next(t for t in tensors if t["storage"] == "arena")["offset"] = -64


def enlarge_beyond_64_bits(manifest):
    tensors = manifest["plan"]["tensors"]
    next(t for t in tensors if t["storage"] == "arena")["shape"] = [1 << 32, 1 << 32]


def change_a_shape(manifest):
    manifest["artifacts"][0]["inputs"][0]["shape"] = [2, 63]


def change_a_border(manifest):
    manifest["plan"]["tensors"][manifest["plan"]["inputs"][0]]["shape"] = [2, 640]


def negate_a_dimension(manifest):
    manifest["plan"]["tensors"][0]["shape"] = [-2, -64]


def invent_a_dtype(manifest):
    manifest["plan"]["tensors"][0]["dtype"] = "float33"


def hold_objects(manifest):
    manifest["plan"]["tensors"][0]["dtype"] = "object"


def use_a_missing_tensor(manifest):
    run = next(s["run"] for s in manifest["plan"]["steps"] if s["run"])
    run["inputs"] = [10_000]


def use_a_negative_tensor(manifest):
    run = next(s["run"] for s in manifest["plan"]["steps"] if s["run"])
    run["inputs"] = [-1]


def read_before_writing(manifest):
    manifest["plan"]["steps"].reverse()


def skip_a_step(manifest):
    manifest["plan"]["steps"].pop()


def empty_a_step(manifest):
    manifest["plan"]["steps"][0] = {"run": None, "copy": None}


def run_a_missing_region(manifest):
    next(s["run"] for s in manifest["plan"]["steps"] if s["run"])["region"] = 77


def run_on_another_device(manifest):
    for region in manifest["plan"]["placement"]["regions"]:
        region["device"] = "cpu:0"


def name_no_device(manifest):
    manifest["plan"]["devices"][0] = "warp:0"


def drop_an_arena(manifest):
    manifest["plan"]["arena_bytes"].pop()


def enlarge_an_arena(manifest):
    manifest["plan"]["arena_bytes"][0] = 1 << 50


def drop_a_constant(manifest):
    manifest["constants"].clear()


def reshape_a_constant(manifest):
    manifest["constants"][0]["shape"] = [3]


def flatten_a_constant(manifest):
    manifest["constants"][0]["shape"] = [-1]


def retype_a_constant(manifest):
    manifest["constants"][0]["dtype"] = "finfo"


def refer_to_a_missing_blob(manifest):
    manifest["artifacts"][0]["payload"] = 99


def refer_to_a_negative_blob(manifest):
    manifest["artifacts"][0]["payload"] = -1


def shorten_a_blob(manifest):
    manifest["blobs"][0]["nbytes"] -= 1


def negate_a_blob(manifest):
    manifest["blobs"][0]["nbytes"] = -1


def change_a_digest(manifest):
    manifest["blobs"][0]["digests"] = ["0" * 32]


def list_an_extra_blob(manifest):
    manifest["blobs"].append({"name": "constants/9", "nbytes": 0, "digests": []})


def list_too_few_blobs(manifest):
    manifest["blobs"].pop()


def change_a_type(manifest):
    manifest["plan"] = 7


def swap_a_backend(manifest):
    manifest["artifacts"][0]["backend"] = "reference"


def output_from_a_device(manifest):
    on_device = next(i for i, t in enumerate(manifest["plan"]["tensors"]) if t["device"] == 1)
    manifest["plan"]["outputs"][0] = on_device


CHANGES = [
    *(set_version, drop_version, move_out_of_arena, move_before_arena, enlarge_beyond_64_bits),
    *(change_a_shape, change_a_border, negate_a_dimension, invent_a_dtype, hold_objects),
    *(use_a_missing_tensor, use_a_negative_tensor, read_before_writing, skip_a_step),
    *(empty_a_step, run_a_missing_region, run_on_another_device, name_no_device, drop_an_arena),
    enlarge_an_arena,
    *(drop_a_constant, reshape_a_constant, flatten_a_constant, retype_a_constant),
    *(refer_to_a_missing_blob, refer_to_a_negative_blob, shorten_a_blob, negate_a_blob),
    *(change_a_digest, list_an_extra_blob, list_too_few_blobs, change_a_type, swap_a_backend),
    output_from_a_device,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_manifest_that_does_not_fit_is_refused(change, package, backends, tmp_path):
    path = tmp_path / "m.intarsia"
    with_manifest(package, path, change)
    with pytest.raises(PackageError):
        intarsia.load(path, backends=backends)


@pytest.mark.parametrize("key", ["num_threads", "graph_optimization"])
def test_metadata_that_a_backend_cannot_read_is_a_backend_error(key, package, backends, tmp_path):
    def change(manifest):
        manifest["artifacts"][0]["metadata"][key] = "odd"

    path = tmp_path / "m.intarsia"
    with_manifest(package, path, change)
    with pytest.raises(BackendError, match=r"'onnxruntime' failed to load a region|damaged"):
        intarsia.load(path, backends=backends)


def test_an_honest_rewrite_loads(package, backends, tmp_path):
    path = tmp_path / "m.intarsia"
    with_manifest(package, path, lambda manifest: None)
    intarsia.load(path, backends=backends)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'{"format_version": "0"}', b"\xff"])
def test_a_manifest_that_is_no_json_object_is_refused(text, package, backends, tmp_path):
    path = tmp_path / "m.intarsia"
    rewrite(package, path, lambda name, data: text if name == MANIFEST else data)
    with pytest.raises(PackageError):
        intarsia.load(path, backends=backends)


def test_an_entry_that_the_manifest_does_not_list_is_refused(package, backends, tmp_path):
    path = tmp_path / "m.intarsia"
    with zipfile.ZipFile(package) as file:
        contents = [(name, memoryview(file.read(name))) for name in file.namelist()]
    write_archive(path, [*contents, ("extra", memoryview(b"evil"))])
    with pytest.raises(PackageError, match="entry 'extra' and the manifest do not agree"):
        intarsia.load(path, backends=backends)


def test_a_missing_blob_is_refused(package, backends, tmp_path):
    path = tmp_path / "m.intarsia"
    rewrite(package, path, lambda name, data: None if name == "regions/0.onnx" else data)
    with pytest.raises(PackageError, match=r"regions/0\.onnx"):
        intarsia.load(path, backends=backends)


def test_a_changed_blob_is_refused(package, backends, tmp_path):
    path = tmp_path / "m.intarsia"
    rewrite(package, path, lambda name, data: data[:-1] + b"?" if "regions" in name else data)
    with pytest.raises(PackageError, match="the checksum of 'regions/0"):
        intarsia.load(path, backends=backends)


def test_a_missing_backend_is_named(package, backends):
    with pytest.raises(BackendError, match="'onnxruntime' is not available") as caught:
        intarsia.load(package, backends=collect([backends.named("fake")]))
    assert isinstance(caught.value, IntarsiaError)
    assert caught.value.backend == "onnxruntime"


def test_running_a_package_imports_no_compiler(package):
    code = (
        "import sys, numpy, intarsia\n"
        "exe = intarsia.load(sys.argv[1])\n"
        "exe(numpy.ones((2, 64), 'float32'))\n"
        "print([m for m in ('onnx_ir', 'onnxscript') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(package)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("target", ["onnxruntime", "openvino, onnxruntime", "reference"])
@pytest.mark.parametrize("location", ["/etc/hostname", "../secret.bin", "secret.bin", "constants"])
def test_a_payload_that_names_a_file_is_refused(target, location, tmp_path, parse_model, backends):
    model = parse_model("g (float[4] x) => (float[4] y) <float[4] w = {1,2,3,4}> { y = Add(x, w) }")
    exe = intarsia.compile(model, target, backends=backends)
    proto = onnx.load_from_string(exe.artifacts[0].payload)
    (tensor,) = proto.graph.initializer
    tensor.ClearField("float_data")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    evil = dataclasses.replace(exe.artifacts[0], payload=proto.SerializeToString())
    exe.artifacts = (evil,)
    exe.save(tmp_path / "evil.intarsia")
    with pytest.raises(PackageError, match="external data"):
        intarsia.load(tmp_path / "evil.intarsia", backends=backends)


@pytest.fixture(scope="module")
def free_package(parse_model, tmp_path_factory):
    """A package of `y = x @ w` for two sizes, and the weights."""
    model = parse_model("g (float[n,64] x, float[64,64] w) => (float[n,64] y) {y = MatMul(x, w)}")
    weights = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    path = tmp_path_factory.mktemp("package") / "free.intarsia"
    intarsia.compile(model, "reference", sizes={"n": [2, 3]}, shapes={"n": "1..8"}).save(path)
    return path, weights


def test_a_package_with_free_dimensions_runs_at_sizes_that_it_has_and_at_others(free_package):
    path, weights = free_package
    for frozen, sizes in ((True, (2, 3)), (False, (2, 5))):
        exe = intarsia.load(path, frozen=frozen)
        assert [one["n"] for one in exe.sizes] == [2, 3]
        for size in sizes:
            x = np.random.default_rng(size).standard_normal((size, 64)).astype(np.float32)
            np.testing.assert_allclose(exe(x), x @ weights, rtol=1e-4, atol=1e-5)
    with pytest.raises(IntarsiaError, match=r"'n' is 9 in input 'x', and was bounded to 1\.\.8"):
        exe(np.zeros((9, 64), np.float32))
    with pytest.raises(IntarsiaError, match="no program for n=4"):
        intarsia.load(path, frozen=True)(np.zeros((4, 64), np.float32))


def test_a_package_has_the_weights_of_all_its_programs_once(free_package):
    path, weights = free_package
    with zipfile.ZipFile(path) as file:
        sizes = [info.file_size for info in file.infolist()]
    assert sizes.count(weights.nbytes) == 1


def test_a_package_that_was_loaded_is_saved_with_its_new_programs(free_package, tmp_path):
    exe = intarsia.load(free_package[0])
    exe(np.zeros((7, 64), np.float32))
    exe.save(tmp_path / "more.intarsia")
    again = intarsia.load(tmp_path / "more.intarsia", frozen=True)
    assert sorted(one["n"] for one in again.sizes) == [2, 3, 7]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda free: free.update(bounds={"n": [5, 8]}), "a plan does not fit the model"),
        (lambda free: free["inputs"][0].update(name="z"), "it has other inputs"),
        (lambda free: free.update(model=99), "refers to blob 99"),
        (lambda free: free["recipe"].pop("target"), "manifest is malformed"),
    ],
)
def test_free_dimensions_that_do_not_fit_are_refused(free_package, change, message, tmp_path):
    path = tmp_path / "odd.intarsia"
    with_manifest(free_package[0], path, lambda manifest: change(manifest["free"]))
    with pytest.raises(PackageError, match=message):
        intarsia.load(path)


def test_a_stored_model_reads_no_files(free_package, tmp_path):
    path = tmp_path / "odd.intarsia"
    with_manifest(free_package[0], path, lambda manifest: manifest["free"].update(tensors=[]))
    exe = intarsia.load(path)
    with pytest.raises(PackageError, match="refers to external data"):
        exe(np.zeros((5, 64), np.float32))


def test_packages_of_format_1_load(package, tmp_path):
    def older(name, data):
        if name == SEAL:
            return None
        if name != MANIFEST:
            return data
        manifest = msgspec.json.decode(data)
        manifest["format_version"] = 1
        for blob in manifest["blobs"]:
            blob["digests"] = [digest[:32] for digest in blob["digests"]]
            del blob["crc"]
        del manifest["free"], manifest["source"]
        return msgspec.json.encode(manifest)

    path = tmp_path / "older.intarsia"
    rewrite(package, path, older)
    assert intarsia.load(path).placement == intarsia.load(package).placement


@pytest.mark.parametrize("target", ["onnxruntime", "llvm, onnxruntime"])
def test_a_package_has_the_program_for_all_sizes(target, parse_model, tmp_path):
    model = parse_model(
        "g (float[n,m,8] x, float[8,8] w) => (float[n,m,8] y) {z = MatMul(x, w) y = Relu(z)}"
    )
    weights = np.eye(8, dtype=np.float32) * 2
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    path = tmp_path / "free.intarsia"
    intarsia.compile(model, target, shapes={"n": "1..4"}).save(path)
    exe = intarsia.load(path, frozen=True)
    for shape in ((1, 3, 8), (4, 50, 8)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(exe(x), np.maximum(2 * x, 0), rtol=1e-6)
    assert exe.artifacts == exe.generic.artifacts
    assert intarsia.load(path).specialise({"n": 2, "m": 5}).inputs[0].shape == (2, 5, 8)
    odd = tmp_path / "odd.intarsia"
    with_manifest(path, odd, lambda manifest: manifest["plan"]["extents"].update({"0": [1, 2, 3]}))
    with pytest.raises(PackageError, match="free dimensions of a plan are not those"):
        intarsia.load(odd)
