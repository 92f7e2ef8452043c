# SPDX-License-Identifier: Apache-2.0
"""Which code a cost belongs to: the library's version, and our sources where we generate code."""

import re

import pytest
from tests.opencl import first_device

from intarsia.backends.sources import code_version
from intarsia.codegen.lower.schedules import ScheduleChoice
from intarsia.native.schedule_table import TunedSchedule, find_table
from intarsia.place.machine import make_contexts
from intarsia.settings import Settings
from intarsia.target import CompilationConfig

GENERATED = re.compile(
    r", intarsia \d[^ ]* \(sources [0-9a-f]{8}(, amx-[a-z0-9]+)*(, device .+)?\)$"
)


def context_of(target, num_threads=1):
    config = CompilationConfig.resolve(f"{target}, reference")
    return make_contexts(config, num_threads)[config.targets[0]]


@pytest.mark.parametrize("name", ["llvm", "dnnl", "opencl"])
def test_generated_code_is_known_by_our_sources_too(backends, name):
    backend = backends.by_name[name]
    try:
        version = backend.version()
    except Exception as error:
        pytest.skip(str(error))
    found = code_version(backend, context_of(name))
    assert found.startswith(f"{name} {version}, ")
    assert GENERATED.search(found)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_library_is_known_by_its_version(backends, name):
    backend = backends.by_name[name]
    assert code_version(backend, context_of(name)) == f"{name} {backend.version()}"


def test_tuned_schedules_are_a_part_of_the_version(backends, tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_SCHEDULES", str(tmp_path))
    settings = Settings.from_environment()
    backend, context = backends.by_name["llvm"].configured(settings), context_of("llvm")
    found = [code_version(backend, context)]
    table = find_table(context.target.target, context.num_threads, settings)
    for choice in (
        None,
        ScheduleChoice("direct", {"pixels": 6}),
        ScheduleChoice("direct", {"pixels": 7}),
    ):
        table.add({"conv": TunedSchedule(choice, 1.2, 1.1, 1.3, 9, 100.0)})
        found.append(code_version(backend, context))
    assert found[0] == found[1]  # that nothing beats the heuristic changes no code
    assert len(set(found)) == 3
    assert re.search(r"\(sources [0-9a-f]{8}, schedules [0-9a-f]{8}(, amx-[a-z0-9]+)*\)$", found[2])
    assert code_version(backend, context_of("llvm", num_threads=2)) == found[0]


def opencl_codes(backends, monkeypatch, devices):
    """Return which code runs on each of some OpenCL devices."""
    first_device()
    monkeypatch.setenv("INTARSIA_OPENCL_DEVICES", devices)
    backend = backends.by_name["opencl"].configured(Settings.from_environment())
    config = CompilationConfig.resolve("opencl:0, opencl:1, reference")
    contexts = make_contexts(config, 1)
    return [code_version(backend, contexts[placed]) for placed in config.targets[:2]]


def test_devices_of_a_kind_that_are_not_alike_have_costs_of_their_own(backends, monkeypatch):
    whole, half = opencl_codes(backends, monkeypatch, "0,0/2")
    assert whole != half
    assert opencl_codes(backends, monkeypatch, "0/2") == [half, half]  # whatever their numbers


def test_devices_that_are_alike_share_costs(backends, monkeypatch):
    one, other = opencl_codes(backends, monkeypatch, "0,0")
    assert one == other
