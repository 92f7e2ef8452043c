# SPDX-License-Identifier: Apache-2.0
"""The environment is read in one place, and what it says wrongly is an error."""

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
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert Settings().cache_folder() == Path("/var/xdg/intarsia")
    monkeypatch.delenv("XDG_CACHE_HOME")
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
