# SPDX-License-Identifier: Apache-2.0
"""The view of devices: what each runs and holds, and what is copied to and from it."""

import pytest

import intarsia
from intarsia.errors import InputError
from intarsia.plan.explanation import explain_plan
from intarsia.plan.plan import CopyStep

ROW_BYTES = 32
"""Of every value in the chain but its weights: float32[2, 4]."""
OPS = "fake -ops=MatMul,Relu,Tanh, reference"


@pytest.fixture(scope="module")
def chain(chain_model, backends):
    return intarsia.compile(chain_model, OPS, backends=backends)


def test_devices_say_what_they_run(chain):
    host, fake = chain.explain().devices
    assert (host.device, fake.device) == ("cpu:0", "ext_dev:0/fake")
    assert (host.targets, fake.targets) == (("reference",), (chain.placement.regions[0].target,))
    assert (host.nodes, fake.nodes) == (2, 3)
    assert sorted((*host.regions, *fake.regions)) == list(range(len(chain.placement.regions)))


def test_copies_of_all_devices_are_those_of_the_plan(chain):
    views = chain.explain().devices
    for side in ("incoming", "outgoing"):
        traffic = [getattr(view, side) for view in views]
        assert sum(item.copies for item in traffic) == len(chain.plan.copies)
        assert sum(item.nbytes for item in traffic) == sum(c.nbytes for c in chain.plan.copies)
    host, fake = views
    assert (fake.incoming.copies, fake.incoming.nbytes) == (1, ROW_BYTES)  # x
    assert (fake.outgoing.copies, fake.outgoing.nbytes) == (2, 2 * ROW_BYTES)  # mid and c
    assert host.incoming == fake.outgoing


def test_memory_is_tensors_constants_and_scratch(chain):
    host, fake = chain.explain().devices
    assert fake.constant_bytes == 0  # small ones are part of the code
    assert fake.tensor_bytes == chain.plan.arena_bytes[1] >= 3 * ROW_BYTES
    assert fake.scratch_bytes == 0
    assert fake.peak_bytes == fake.tensor_bytes
    assert host.constant_bytes == 0
    border = 3 * ROW_BYTES  # x, y, mid
    assert host.tensor_bytes == chain.plan.arena_bytes[0] + border


def test_regions_on_one_device_share_scratch_and_constants(parse_model, backends):
    weights = ", ".join(str(i % 7) for i in range(1024))
    model = parse_model(f"""
        g (float[8,32] x) => (float[8,32] y) <float[32,32] w = {{{weights}}}>
        {{ a = MatMul(x, w) b = Exp(a) y = MatMul(b, w) }}""")
    exe = intarsia.compile(model, "llvm, reference", exclude=["llvm:Exp"], backends=backends)
    (host,) = exe.explain().devices
    scratch = [int(artifact.metadata.get("scratch_bytes", 0)) for artifact in exe.artifacts]
    assert len(host.regions) == 3
    assert host.scratch_bytes == max(scratch)
    packed = [constant.data.nbytes for a in exe.artifacts for constant in a.constants]
    assert 4 * 1024 <= host.constant_bytes <= sum(packed)


def test_a_package_says_the_same_without_being_loaded(chain):
    assert explain_plan(chain.plan, chain.artifacts).devices == chain.explain().devices


def test_a_profile_adds_the_times(chain, random_feeds, chain_model):
    profile = chain.profile(random_feeds(chain_model), runs=2)
    assert profile.runs == 2
    found = chain.explain(profile)
    of_copies = {
        position: seconds
        for position, seconds in enumerate(profile.seconds)
        if isinstance(chain.plan.steps[position], CopyStep)
    }
    assert [row.seconds for row in found.copies] == list(of_copies.values())
    assert sum(view.seconds for view in found.devices) == pytest.approx(sum(found.region_seconds))
    total = sum(found.region_seconds) + sum(view.incoming.seconds for view in found.devices)
    assert total == pytest.approx(sum(profile.seconds))
    assert all(view.seconds is None for view in chain.explain().devices)


def test_a_profile_needs_a_run(chain, random_feeds, chain_model):
    with pytest.raises(InputError, match="0 runs cannot be timed"):
        chain.profile(random_feeds(chain_model), runs=0)


def test_the_text_names_devices_with_bytes(chain):
    text = str(chain.explain())
    assert "device cpu:0: 2 nodes in 1 regions on reference; " in text
    assert f"copies in 1 ({ROW_BYTES} B), out 2 ({2 * ROW_BYTES} B)" in text
