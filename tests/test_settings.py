# SPDX-License-Identifier: Apache-2.0
"""The environment is read where a request comes in, and what it says wrongly is an error."""

import ast
import os
from pathlib import Path

import pytest

import intarsia
from intarsia.errors import IntarsiaError, SettingError
from intarsia.settings import Settings


def test_nothing_set_means_the_defaults():
    settings = Settings.from_environment({})
    assert settings == Settings()
    assert settings.log_level == "warning"
    assert settings.threads() == len(os.sched_getaffinity(0))


def test_every_variable_is_read():
    settings = Settings.from_environment(
        {
            "INTARSIA_CACHE_DIR": "/caches/ours",
            "INTARSIA_NUM_THREADS": " 3 ",
            "INTARSIA_LOG": "debug",
            "INTARSIA_DEBUG": "yes",
            "INTARSIA_TARGETS": os.pathsep.join(("a.toml", "", "b c.json")),
        }
    )
    assert settings == Settings(
        cache_dir="/caches/ours",
        num_threads=3,
        log_level="debug",
        debug=True,
        target_files=("a.toml", "b c.json"),
    )
    assert settings.threads() == 3
    assert settings.cache_folder() == Path("/caches/ours")
    assert settings.schedules_folder() == Path("/caches/ours/schedules")
    assert Settings(schedules="/tuned").schedules_folder() == Path("/tuned")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("INTARSIA_NUM_THREADS", "many"),
        ("INTARSIA_NUM_THREADS", "-1"),
        ("INTARSIA_NUM_THREADS", "1.5"),
        ("INTARSIA_LOG", "loud"),
        ("INTARSIA_DEBUG", "perhaps"),
    ],
)
def test_a_value_that_is_none_names_its_variable(variable, text):
    with pytest.raises(SettingError, match=variable) as caught:
        Settings.from_environment({variable: text})
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_variable_counts_as_unset(text):
    assert Settings.from_environment({"INTARSIA_NUM_THREADS": text}) == Settings()


@pytest.mark.parametrize("text", ["0", "false", "NO", "off"])
def test_a_boolean_can_be_switched_off(text):
    assert Settings.from_environment({"INTARSIA_DEBUG": text}).debug is False


def test_the_cache_folder_follows_xdg(monkeypatch):
    settings = Settings.from_environment({"XDG_CACHE_HOME": "/var/xdg"})
    assert settings.cache_folder() == Path("/var/xdg/intarsia")
    monkeypatch.setenv("HOME", "/home/someone")
    assert Settings().cache_folder() == Path("/home/someone/.cache/intarsia")
    assert Settings(cache_dir="~/c").cache_folder() == Path("/home/someone/c")


@pytest.mark.parametrize(
    ("variable", "options"),
    [
        ("INTARSIA_CACHE_DIR", {}),
        ("INTARSIA_SCHEDULES", {}),
        ("INTARSIA_DUMP", {}),
        ("INTARSIA_COSTS", {}),
        ("XDG_CACHE_HOME", {}),
        (None, {"target": "onnxruntime -custom_ops=~nobody.of.that.name/ops.so"}),
    ],
)
def test_a_home_that_is_not_known_is_an_error(variable, options, parse_model, monkeypatch):
    if variable is not None:
        monkeypatch.setenv(variable, "~nobody.of.that.name/folder")
    if variable == "XDG_CACHE_HOME":
        monkeypatch.delenv("INTARSIA_CACHE_DIR", raising=False)
    model = parse_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(
        IntarsiaError, match=r"'~nobody\.of\.that\.name/.*' is in a home folder"
    ) as it:
        intarsia.compile(model.SerializeToString(), **{"target": "llvm", "cache": True} | options)
    assert it.value.hint


def test_a_cache_folder_that_all_may_write_to_is_refused(tmp_path):
    settings = Settings(cache_dir=str(tmp_path))
    assert settings.cache_folder() == tmp_path
    tmp_path.chmod(0o777)
    with pytest.raises(SettingError, match="others may write to the cache folder") as caught:
        settings.cache_folder()
    assert "chmod go-w" in caught.value.hint


PACKAGE = Path(intarsia.__file__).parent

READERS = {
    "intarsia.provider.library": "ONNX Runtime's library is asked for before there is a request",
    "intarsia.place.request": "a request that an entry point makes has the settings as a part",
    "intarsia.runtime.loading": "`intarsia.load`",
    "intarsia.runtime.package": "`save`, and `read_package` of a command",
    "intarsia.session.providers": "`get_available_providers`",
    "intarsia.session.session": "`InferenceSession`",
    "intarsia.onnx_backend.backend": "ONNX's `Backend`",
    "intarsia.onnx_backend.claims": "`check_claims`",
    "intarsia.onnx_backend.conformance": "`prepare_ours`",
    "intarsia.quantizing.quantize": "`intarsia.quantize`",
    "intarsia.target.cpu": "`Target` of this machine's CPU",
    "intarsia.target.registry": "`Target` by the name of a plug-in's kind",
    "intarsia.target.user_files": "`Target` by a name that is not known",
    "intarsia.testing.subject": "the conformance kit",
    "intarsia.testing.differential.campaign": "`run`",
    "intarsia.testing.differential.judging": "`Judged`, also in workers",
    "intarsia.testing.differential.sight": "`switches`",
    "intarsia.testing.endurance": "the main function of a worker",
    "intarsia.testing.programs": "the main function of a worker",
    "intarsia.bench.subject": "the main function of a worker",
    "intarsia.tuning.objectives.packaged": "the main function of a worker",
    "intarsia.tuning.laboratory.reference": "the main function of a worker",
    "intarsia.tuning.laboratory.session": "the main function of a worker",
    "intarsia.backends.opencl.first_use": "the main function of a worker",
    "intarsia.backends.webgpu.first_use": "the main function of a worker",
    "intarsia.verifying.sides": "the main function of a worker",
    "intarsia.verifying.watching": "the main function of a worker",
}
"""Modules beside the commands whose functions a user or another process calls, and which."""

OF_OTHERS = {
    "intarsia.native.linking": "hands all of it on to a compiler",
    "intarsia.process.selftest": "hands all of it on to a process",
    "intarsia.process.workers": "hands all of it on to a process",
    "intarsia.report.health": "shows where a setting comes from, and what is not obeyed",
    "intarsia.backends.onednn_isa": "oneDNN's variable",
    "intarsia.backends.dnnl.forking": "the variables of OpenMP runtimes",
    "intarsia.backends.opencl.pocl": "PoCL's variable",
    "intarsia.quantizing.libraries": "NNCF's variable for its telemetry",
    "intarsia.backends.opencl.vendors": "the variables of OpenCL's loaders",
    "intarsia.backends.webgpu.driver": "Wayland's variable",
    "intarsia.backends.runtimes": "variables of runtimes, while they are imported",
}
"""Modules that hand on, show or set variables of others."""


def _readers(names):
    """Modules that name one of these attributes, the settings and the commands aside."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        module = ".".join((PACKAGE.name, *file.relative_to(PACKAGE).with_suffix("").parts))
        text = file.read_text(encoding="utf-8")
        if not any(name in text for name in names):  # to parse them all takes seconds
            continue
        tree = ast.parse(text)
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
        if used & names and module != "intarsia.settings":
            found.add(module.removesuffix(".__init__"))
    return found


def test_the_environment_is_read_only_where_a_request_comes_in():
    readers = _readers({"from_environment"})
    assert {module for module in readers if not module.startswith("intarsia.cli.")} == set(READERS)


def test_other_variables_are_touched_only_on_behalf_of_others():
    assert _readers({"environ", "environb", "getenv", "putenv", "unsetenv"}) == set(OF_OTHERS)
