# SPDX-License-Identifier: Apache-2.0
"""Whose code runs: what was written here, what a trusted key signed, and what the user says."""

import hashlib
import logging
import stat
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

import intarsia
from intarsia.backends import llvm
from intarsia.backends.registry import load_backends
from intarsia.errors import PackageError, SettingError
from intarsia.keys import Keys
from intarsia.runtime.archive import open_archive, write_archive
from intarsia.runtime.check import check_package
from intarsia.runtime.package import MANIFEST, SEAL, read_package, sign_package
from intarsia.runtime.trust import HARMLESS
from intarsia.settings import Settings

X = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)


@pytest.fixture(scope="module")
def model(parse_model):
    model = parse_model(
        "g (float[{n},64] x, float[64,64] w) => (float[{n},64] y) "
        "{ a = MatMul(x, w) b = Relu(a) y = Tanh(b) }".replace("{n}", "4")
    )
    weights = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32) / 8
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    return model


@pytest.fixture(scope="module")
def package(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("trust") / "m.intarsia"
    intarsia.compile(model, "llvm", num_threads=1).save(path)
    return path


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """Another installation, without any key."""
    monkeypatch.setenv("INTARSIA_KEYS_DIR", str(tmp_path / "other"))
    return Keys(tmp_path / "other")


@pytest.fixture
def loads(monkeypatch):
    """Counts payloads of `llvm` that are loaded, and keeps them."""
    loaded, load = [], llvm.LlvmBackend.load

    def count(self, artifact, device):
        loaded.append(artifact.payload)
        return load(self, artifact, device)

    monkeypatch.setattr(llvm.LlvmBackend, "load", count)
    return loaded


def forge(source, path, edit):
    """Write a package again with another manifest or other blobs, and digests that fit."""
    contents = {name: bytes(view) for name, view in open_archive(source).contents.items()}
    manifest = msgspec.json.decode(contents[MANIFEST])
    edit(manifest, contents)
    contents[MANIFEST] = msgspec.json.encode(manifest)
    write_archive(path, [(name, memoryview(data)) for name, data in contents.items()])


def test_what_was_written_here_runs_as_it_is(package, model, loads, caplog):
    assert read_package(package).signer == "this installation"
    exe = intarsia.load(package, num_threads=1)
    assert loads == [exe.artifacts[0].payload]
    assert not caplog.records
    key = Path(Settings.from_environment().keys_folder(), "installation.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_strangers_code_is_compiled_again_with_the_same_numbers(
    package, model, stranger, caplog, tmp_path
):
    here = intarsia.compile(model, "llvm", num_threads=1)
    forge(package, tmp_path / "odd.intarsia", lambda manifest, contents: None)
    for path in (package, tmp_path / "odd.intarsia"):
        caplog.clear()
        exe = intarsia.load(path, num_threads=1)
        (record,) = caplog.records
        assert "nobody vouches for" in record.getMessage()
        assert "1 of llvm were compiled again" in record.getMessage()
        np.testing.assert_array_equal(exe(X), here(X))
    with pytest.raises(PackageError, match="nothing is to be compiled") as caught:
        intarsia.load(package, frozen=True)
    assert "--trust" in caught.value.hint
    with pytest.raises(PackageError, match="no key that you trust signed it"):
        intarsia.load(package, require_signature=True)
    report = check_package(package, load_backends(Settings.from_environment()), 1)
    assert report.verdict == "changed"
    assert "regions 1 of llvm are compiled again" in str(report.findings)


def test_forged_code_never_reaches_the_compiler(package, stranger, loads, tmp_path):
    evil = b"evil" * 1000

    def replace_code(manifest, contents):
        contents["regions/0.onnx"] = evil
        for blob in manifest["blobs"]:
            if blob["name"] == "regions/0.onnx":
                blob |= {"nbytes": len(evil), "crc": zlib.crc32(evil)}
                blob["digests"] = [hashlib.sha256(evil).hexdigest()]

    forge(package, tmp_path / "evil.intarsia", replace_code)
    intarsia.load(tmp_path / "evil.intarsia", num_threads=1)
    assert loads
    assert evil not in loads
    with pytest.raises(PackageError, match="damaged"):
        intarsia.load(tmp_path / "evil.intarsia", num_threads=1, trust=True)


def test_the_user_may_say_that_it_is_trusted(package, stranger, loads, caplog):
    intarsia.load(package, num_threads=1, trust=True)
    assert len(loads) == 1
    assert not caplog.records


def test_check_and_a_session_load_what_the_user_trusts(package, stranger, loads, caplog):
    report = check_package(package, load_backends(Settings.from_environment()), 1, trust=True)
    assert "compiled again" not in str(report.findings)
    assert len(loads) == 1
    intarsia.InferenceSession(package, trust=True, num_threads=1)
    assert len(loads) == 2
    assert not caplog.records
    with pytest.raises(PackageError, match="no key that you trust signed it"):
        intarsia.InferenceSession(package, require_signature=True)


def test_a_session_of_a_model_asks_for_no_trust(model):
    bytes_ = model.SerializeToString()
    session = intarsia.InferenceSession(bytes_, targets="reference", trust=True, cache=False)
    assert session.run(None, {"x": X})[0].shape == (4, 64)


def test_a_package_may_leave_the_model_out(model, stranger, tmp_path):
    from intarsia.compiler import carry_out
    from intarsia.place.request import Request

    made = carry_out(Request(model=model, target="llvm", num_threads=1, cache=False))
    made.save(tmp_path / "whole.intarsia")
    made.save(tmp_path / "code.intarsia", has_model=False)
    assert read_package(tmp_path / "whole.intarsia").source is not None
    assert read_package(tmp_path / "code.intarsia").source is None
    free = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    )
    made = carry_out(Request(model=free, target="reference", cache=False))
    with pytest.raises(SettingError, match="needs the model"):
        made.save(tmp_path / "free.intarsia", has_model=False)


def test_a_seal_of_another_package_is_none(package, model, tmp_path):
    intarsia.compile(model, "llvm -mattr=-avx2", num_threads=1).save(tmp_path / "b.intarsia")
    seal = bytes(open_archive(tmp_path / "b.intarsia").contents[SEAL])
    path = tmp_path / "m.intarsia"
    forge(package, path, lambda manifest, contents: contents.update({SEAL: seal}))
    assert read_package(path).signer == ""
    for change in (b"{}", b'{"here":"","signatures":[]}'):
        forge(package, path, lambda manifest, contents, c=change: contents.update({SEAL: c}))
        if change == b"{}":
            with pytest.raises(PackageError, match="seal is not written as seals are"):
                read_package(path)
        else:
            assert read_package(path).signer == ""


def test_a_trusted_key_vouches_until_it_is_not_trusted(package, stranger, tmp_path, loads):
    pytest.importorskip("cryptography", reason="cryptography")
    signer = Keys(tmp_path / "signer")
    public = signer.make()
    assert stat.S_IMODE((tmp_path / "signer" / "signing.key").stat().st_mode) == 0o600
    with pytest.raises(SettingError, match="there is a key already"):
        signer.make()
    path = tmp_path / "m.intarsia"
    path.write_bytes(package.read_bytes())
    sign_package(path, signer)
    sign_package(path, signer)
    assert read_package(path).signer == ""
    stranger.trust("friend", public)
    assert read_package(path).signer == "key 'friend'"
    intarsia.load(path, num_threads=1, require_signature=True)
    assert len(loads) == 1
    forge(path, tmp_path / "odd.intarsia", lambda manifest, contents: manifest.update(odd=1))
    assert read_package(tmp_path / "odd.intarsia").signer == ""
    stranger.distrust("friend")
    assert read_package(path).signer == ""
    for name, key in (("a b", public), ("a", "ed25519:AAAA"), ("a", "rsa:" + public)):
        with pytest.raises(SettingError):
            stranger.trust(name, key)


def test_keys_that_others_may_read_or_change_count_for_nothing(package, tmp_path, caplog):
    folder = Settings.from_environment().keys_folder()
    try:
        folder.chmod(0o777)
        assert read_package(package).signer == ""
        folder.chmod(0o700)
        (folder / "installation.key").chmod(0o644)
        assert read_package(package).signer == ""
    finally:
        folder.chmod(0o700)
        (folder / "installation.key").chmod(0o600)
    assert "is not used" in caplog.text
    assert read_package(package).signer


def test_where_no_key_can_be_kept_it_says_so(model, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INTARSIA_KEYS_DIR", str(tmp_path / "file" / "keys"))
    exe = intarsia.compile(model, "llvm", num_threads=1)
    exe.save(tmp_path / "m.intarsia")
    assert "will not be known as such" in caplog.text
    assert "INTARSIA_KEYS_DIR" in caplog.text
    np.testing.assert_array_equal(intarsia.load(tmp_path / "m.intarsia", num_threads=1)(X), exe(X))


def test_data_of_strangers_is_loaded_as_it_is(model, stranger, tmp_path, caplog):
    exe = intarsia.compile(model, "dnnl, onnxruntime", num_threads=1)
    exe.save(tmp_path / "m.intarsia")
    (tmp_path / "other" / "installation.key").unlink()
    names = open_archive(tmp_path / "m.intarsia").contents
    assert "model.onnx" not in names
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(
            intarsia.load(tmp_path / "m.intarsia", num_threads=1)(X), exe(X)
        )
    assert not caplog.records


@pytest.mark.parametrize(
    "target",
    [
        "llvm -runner='touch {evil}'",
        "llvm -cl-opt=-load:string={evil}",
        "onnxruntime -custom_ops={evil}",
        "llvm, cmsis-nn -cmsis_nn_path={evil}",
    ],
)
def test_targets_of_strangers_name_no_files_and_no_commands(target, package, stranger, tmp_path):
    evil = tmp_path / "evil"
    path = tmp_path / "m.intarsia"
    forge(
        package,
        path,
        lambda manifest, contents: manifest["source"]["recipe"].update(
            target=target.format(evil=evil)
        ),
    )
    with pytest.raises(PackageError, match="which may name a file or a command") as caught:
        intarsia.load(path, num_threads=1)
    assert "--trust" in caught.value.hint
    assert not evil.exists()


def test_a_strangers_package_with_free_dimensions_is_compiled_again(
    stranger, parse_model, tmp_path, caplog
):
    model = parse_model(
        "g (float[n,64] x, float[64,64] w) => (float[n,64] y) { a = MatMul(x, w) y = Relu(a) }"
    )
    weights = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32) / 8
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del model.graph.input[1]
    path = tmp_path / "free.intarsia"
    exe = intarsia.compile(model, "llvm", num_threads=1)
    exe.save(path)
    expected = exe(X[:3])
    (tmp_path / "other" / "installation.key").unlink()
    again = intarsia.load(path, num_threads=1)
    np.testing.assert_array_equal(again(X[:3]), expected)
    assert "were compiled again" in caplog.text


def test_packages_of_older_formats_are_a_strangers(package, tmp_path):
    def older(manifest, contents):
        manifest["format_version"] = 3
        del manifest["source"], contents[SEAL]
        for blob in manifest["blobs"]:
            blob["digests"] = [digest[:32] for digest in blob["digests"]]
            del blob["crc"]

    path = tmp_path / "old.intarsia"
    forge(package, path, older)
    with pytest.raises(PackageError, match=r"package format 3.*no model to compile"):
        intarsia.load(path)
    intarsia.load(path, trust=True)


FREE_TEXT = """
from intarsia.target import get_kind, list_kinds
attributes = [a for name in list_kinds(all=True) for a in get_kind(name).attrs.values()]
types = ("string", "array<string>")
print(*sorted({a.name for a in attributes if a.type in types and not a.choices}))
"""


def test_every_attribute_in_free_text_is_harmless_or_refused():
    """A new attribute that names files must not become harmless by having the name of one."""
    # In a process of its own: here are kinds of other tests.
    command = [sys.executable, "-c", FREE_TEXT]
    free = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert free >= HARMLESS
    assert free - HARMLESS == {
        *("runner", "acl_root", "cxx", "cmsis_nn_path", "custom_ops", "cl-opt", "llvm-options"),
        *("build_dir", "work_dir", "export_runtime_module", "load_runtime_module", "tmp_dir"),
        *("header", "library", "options"),
    }
