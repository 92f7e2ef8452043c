# SPDX-License-Identifier: Apache-2.0
"""Lock files: text to commit, the plan to rebuild, and what changed since."""

import dataclasses

import msgspec
import numpy as np
import onnx
import pytest
from tests.opencl import first_device

import intarsia
from intarsia.backends.registry import collect
from intarsia.cost import fingerprint
from intarsia.cost.fingerprint import this_machine
from intarsia.cost.records import Assigned
from intarsia.errors import LockError, SettingError, UnsupportedError
from intarsia.plan.compare import Cut, MovedNodes, Relayout, compare_plans
from intarsia.plan.identity import Identity, compare_identities
from intarsia.plan.lock import Lock, decode_lock, lock_plan, read_lock, write_lock

_TARGETS = "fake -ops=Relu,Add, reference"


@pytest.fixture
def compiled(chain_model, backends):
    """A plan of two targets."""
    return intarsia.compile(chain_model, _TARGETS, backends=backends, num_threads=1)


@pytest.fixture
def lock(compiled, tmp_path):
    """A lock file of it."""
    path = tmp_path / "plan.lock.json"
    write_lock(lock_plan(compiled.plan), path)
    return path


@pytest.fixture
def again(chain_model, backends):
    """A function that compiles the model by a lock file, in an environment with some changes."""

    def compile_frozen(lock, model=chain_model, target=_TARGETS, **options):
        options = {"num_threads": 1, "backends": backends} | options
        return intarsia.compile(model, target, frozen=lock, **options)

    return compile_frozen


def _regions(executable):
    return [
        (region.target, tuple(node.name for node in region.nodes))
        for region in executable.placement.regions
    ]


def test_a_lock_rebuilds_its_plan(compiled, lock, again, random_feeds, chain_model, assert_same):
    rebuilt = again(lock)
    assert _regions(rebuilt) == _regions(compiled)
    assert len({target for target, _ in _regions(rebuilt)}) == 2
    assert rebuilt.placement.policy == compiled.placement.policy
    assert rebuilt.placement.regions[0].nodes[0].why == "lock"
    feeds = random_feeds(chain_model)
    assert_same(rebuilt.run(feeds), compiled.run(feeds))
    assert lock_plan(rebuilt.plan) == lock_plan(compiled.plan) == read_lock(lock)


def test_a_lock_can_hold_what_no_policy_would_choose(lock, again):
    """The file decides: its regions are carried out as they are written."""
    found = read_lock(lock)
    every = [name for region in found.regions for name in region.nodes]
    apart = tuple(Assigned("reference", (name,)) for name in every)
    edited = msgspec.structs.replace(found, regions=apart)
    assert _regions(again(edited)) == [("reference", (name,)) for name in every]


def test_without_a_target_the_locks_is_taken(compiled, lock, again):
    assert _regions(again(lock, target=None)) == _regions(compiled)


def test_the_text_is_lossless_and_steady(lock):
    text = lock.read_text()
    assert str(decode_lock(text, "x")) == text
    assert this_machine().text in text
    assert not list(lock.parent.glob("*.partial"))


def test_a_package_can_be_locked(compiled, lock, tmp_path, backends):
    compiled.save(tmp_path / "m.intarsia")
    loaded = intarsia.load(tmp_path / "m.intarsia", backends=backends)
    assert lock_plan(loaded.plan) == read_lock(lock)
    with pytest.raises(LockError, match="does not record what it depends on"):
        lock_plan(dataclasses.replace(loaded.plan, identity=None))


def test_every_change_of_the_environment_is_named(lock, again, backends, parse_model, monkeypatch):
    def message(**options):
        with pytest.raises(LockError, match="locked in another environment") as caught:
            again(lock, **options)
        assert caught.value.hint
        return caught.value.message

    assert message(num_threads=2).endswith("another environment: threads: 1 -> 2")
    assert "targets: " in message(target="reference")
    assert "pins, annotations or exclusions changed" in message(pins={"first": "reference"})
    assert "pins, annotations or exclusions changed" in message(exclude=["fake:Add"])
    with pytest.raises(LockError) as caught:
        again(lock, pins={"first": "reference"})
    assert caught.value.hint.startswith("give the pins, exclusions")
    other = parse_model("chain (float[2,4] x) => (float[2,4] y) { [first] y = Relu(x) }")
    assert "the model changed" in message(model=other)
    fake = backends.named("fake").value
    monkeypatch.setattr(type(fake), "version", lambda self: "9.9")
    patched = collect(backend.value for backend in backends.by_name.values())
    assert "-> 9.9" in message(backends=patched)
    monkeypatch.undo()
    elsewhere = dataclasses.replace(this_machine(), cpu="Another CPU", cpus=64)
    monkeypatch.setattr(fingerprint, "this_machine", lambda: elsewhere)
    assert f"machine: {this_machine().text} -> Another CPU" in message()


def test_weights_are_not_the_environment(compiled, lock, again, chain_model):
    trained = onnx.ModelProto()
    trained.CopyFrom(chain_model)
    weights = onnx.numpy_helper.to_array(trained.graph.initializer[0])
    changed = onnx.numpy_helper.from_array(np.float32(2) * weights, "w")
    trained.graph.initializer[0].CopyFrom(changed)
    assert _regions(again(lock, model=trained)) == _regions(compiled)


def test_a_lock_that_does_not_fit_says_so(lock, again):
    found = read_lock(lock)
    for regions, message in [
        ((Assigned("llvm", ("first",)),), "target 'llvm' is not one of the targets"),
        ((Assigned("reference", ("nobody",)),), "node 'nobody' is not in the model"),
        (found.regions[1:], "do not cover every node exactly once"),
        ((*found.regions, found.regions[0]), "do not cover every node exactly once"),
    ]:
        with pytest.raises(LockError, match=message):
            again(msgspec.structs.replace(found, regions=regions))


def test_what_a_target_does_not_take_is_an_error(lock, again, compiled):
    found = read_lock(lock)
    every = tuple(name for region in found.regions for name in region.nodes)
    fake = compiled.placement.targets[0]
    with pytest.raises(UnsupportedError):
        again(msgspec.structs.replace(found, regions=(Assigned(fake, every),)))


def test_a_region_that_fails_is_not_demoted(chain_model, backends, tmp_path, monkeypatch):
    targets = "fake -ops=Relu,Add, reference"
    only = collect([backends.named("fake"), backends.named("reference")])
    compiled = intarsia.compile(chain_model, targets, backends=only, num_threads=1)
    lock = lock_plan(compiled.plan)

    def fail(self, candidate, context):
        raise intarsia.IntarsiaError("the runtime refused it")

    monkeypatch.setattr(type(backends.named("fake").value), "compile", fail)
    only = collect(backend.value for backend in only.by_name.values())
    with pytest.raises(intarsia.IntarsiaError, match="refused it"):
        intarsia.compile(chain_model, targets, backends=only, num_threads=1, frozen=lock)


def test_a_policy_and_a_lock_contradict(lock, again):
    with pytest.raises(SettingError, match="'greedy' contradicts a frozen plan"):
        again(lock, placement="greedy")


_IDENTITY = Identity("m", "llvm", {"intarsia": "0.1.0", "llvm": "22"}, "d", "CPU", 2, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a lock file"),
        ("not json", "is not a lock file"),
        ("[]", "is not a lock file"),
        ('{"format": "poetry"}', "the format is 'poetry'"),
        (
            str(Lock("greedy", _IDENTITY, ())).replace('"version": 1', '"version": 2'),
            "newer than 1",
        ),
        (str(Lock("greedy", _IDENTITY, ())).replace("greedy", "random"), "random"),
        (str(Lock("greedy", _IDENTITY, ())).replace('"regions"', '"region"'), "regions"),
        (str(Lock("greedy", _IDENTITY, ())).replace('"threads": 2', '"threads": "2"'), "threads"),
    ],
)
def test_what_is_no_lock_is_refused(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(LockError, match=message) as caught:
        read_lock(tmp_path / "x.json")
    assert caught.value.hint


def test_files_that_cannot_be_read_or_written_are_errors(tmp_path):
    with pytest.raises(LockError, match="cannot read"):
        read_lock(tmp_path / "none.json")
    with pytest.raises(LockError, match="cannot write"):
        write_lock(Lock("greedy", _IDENTITY, ()), tmp_path / "none" / "x.json")


def test_identities_differ_in_what_differs():
    now = Identity("m", "llvm", {"intarsia": "0.1.0", "openvino": "1"}, "e", "", 4, "c")
    assert list(map(str, compare_identities(_IDENTITY, now))) == [
        "llvm: 22 -> none",
        "openvino: none -> 1",
        "machine: d -> e",
        "threads: 2 -> 4",
        "pins, annotations or exclusions changed",
    ]
    assert compare_identities(_IDENTITY, _IDENTITY) == ()


def test_a_device_that_is_another_one_is_a_change():
    small, large = (
        dataclasses.replace(_IDENTITY, devices={"opencl": "the first", "opencl:1": name})
        for name in ("a small GPU", "a large GPU")
    )
    gone = dataclasses.replace(_IDENTITY, devices={"opencl": "the first"})
    assert compare_identities(small, small) == ()
    changes = [*compare_identities(small, large), *compare_identities(large, gone)]
    assert list(map(str, changes)) == [
        "device opencl:1: a small GPU -> a large GPU",
        "device opencl:1: a large GPU -> none",
    ]
    assert compare_identities(_IDENTITY, large) == ()  # an older file does not say


@pytest.mark.parametrize("now", ["0/2", "0,0"])
def test_a_lock_is_for_the_device_that_it_was_made_on(
    now, chain_model, backends, again, tmp_path, monkeypatch
):
    first_device()
    targets, path = "opencl, onnxruntime", tmp_path / "plan.lock.json"
    monkeypatch.setenv("INTARSIA_OPENCL_DEVICES", "0")
    compiled = intarsia.compile(chain_model, targets, backends=backends, num_threads=1)
    write_lock(lock_plan(compiled.plan), path)
    again(path, target=targets)
    monkeypatch.setenv("INTARSIA_OPENCL_DEVICES", now)
    if now == "0,0":  # the same device, by another list
        again(path, target=targets)
        return
    with pytest.raises(LockError, match=r"device opencl: .+ -> .+") as caught:
        again(path, target=targets)
    assert "lock the new plan" in caught.value.hint


_BEFORE = (Assigned("a", ("1", "2", "3")), Assigned("b", ("4", "5", "6")))


@pytest.mark.parametrize(
    ("now", "moves", "cuts"),
    [
        (_BEFORE, (), ()),
        (
            (Assigned("a", ("1",)), Assigned("b", ("2", "3", "4", "5", "6"))),
            (MovedNodes(("2", "3"), "a", "b"),),
            (Cut("1", "2", True), Cut("3", "4", False)),
        ),
        (
            (Assigned("a", ("1", "2", "3")), Assigned("b", ("4", "5")), Assigned("b", ("6",))),
            (),
            (Cut("5", "6", True),),
        ),
        (
            (Assigned("a", ("1", "2", "3")), Assigned("b", ("4", "5", "7"))),
            (MovedNodes(("6",), "b", None), MovedNodes(("7",), None, "b")),
            (),
        ),
    ],
)
def test_plans_differ_in_what_differs(now, moves, cuts):
    found = compare_plans(_BEFORE, now)
    assert (found.moves, found.cuts) == (moves, cuts)
    assert found.is_empty == (now == _BEFORE)
    assert found.regions == (2, len(now))


def test_another_order_is_a_difference():
    found = compare_plans(_BEFORE, _BEFORE[::-1], (_IDENTITY, _IDENTITY))
    assert found.is_reordered
    assert not found.is_empty
    assert (found.moves, found.cuts, found.changes) == ((), (), ())


def test_another_layout_between_regions_is_a_difference():
    layouts = ({"2": "nchw16c", "3": "nchw8c"}, {"3": "nchw16c", "4": "nchw16c"})
    found = compare_plans(_BEFORE, _BEFORE, layouts=layouts)
    assert found.layouts == (
        Relayout("2", "nchw16c", None),
        Relayout("3", "nchw8c", "nchw16c"),
        Relayout("4", None, "nchw16c"),
    )
    assert not found.is_empty
    assert compare_plans(_BEFORE, _BEFORE, layouts=(layouts[0], layouts[0])).is_empty
    assert compare_plans(_BEFORE, _BEFORE, layouts=(layouts[0], None)).is_empty  # nobody said
