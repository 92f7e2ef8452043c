# SPDX-License-Identifier: Apache-2.0
"""Files that a user can hand us, damaged in every way: one of our errors, never a foreign one."""

import random
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from intarsia.target.registry import REGISTRY
from intarsia.target.user_files import UserFiles

WRONG_JSON = ("[]", "null", "3", '"text"', "{}", '{"format": 3}', '{"version": "x"}', "[" * 5000)


def spoilt(data):
    """Yield what a file may have become, with a word for it."""
    rng = random.Random(7)
    middle = len(data) // 2
    yield "empty", b""
    yield "garbage", bytes(rng.randrange(256) for _ in range(400))
    yield "no UTF-8", data[:middle] + b"\xff\xfe" + data[middle + 2 :]
    yield "zeros", bytes(len(data) or 9)
    for place in (middle, len(data) - 1):
        yield f"cut at {place}", data[:place]
    for _ in range(2):
        at = rng.randrange(len(data))
        yield f"byte {at}", data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
    if data.startswith((b"{", b"[")):
        for text in WRONG_JSON:
            yield text[:20], text.encode()


@pytest.fixture
def good(call, model, folder):
    """A good file for each door, by its name."""
    assert call("compile", model, "-t", "onnxruntime", "-o", "good.intarsia").code == 0
    assert call("plan", "lock", "good.intarsia", "-o", "good.json").code == 0
    np.save("x.npy", np.zeros((2, 4), np.float32))
    Path("targets.toml").write_text('[labels]\nmine = "onnxruntime"\n')
    return folder


DOORS = {
    "model": ("chain.onnx", ["check", "FILE", "-t", "onnxruntime"]),
    "package": ("good.intarsia", ["run", "FILE"]),
    "checked package": ("good.intarsia", ["check", "FILE"]),
    "lock": (
        "good.json",
        ["compile", "chain.onnx", "-t", "onnxruntime", "--frozen", "FILE", "-o", "o"],
    ),
    "compared lock": ("good.json", ["plan", "diff", "good.intarsia", "FILE"]),
    "array": ("x.npy", ["run", "good.intarsia", "--input", "x=FILE"]),
    "targets": ("targets.toml", ["target", "list", "--target-file", "FILE"]),
    "target": ("targets.toml", ["target", "show", "FILE"]),
    "costs": (None, ["costs", "ls", "--database", "FILE"]),
    "exported costs": (None, ["costs", "import", "FILE", "--database", "new.sqlite"]),
    "merged costs": (None, ["costs", "merge", "FILE", "--database", "new.sqlite"]),
}
SUFFIXES = {"targets": ".toml", "target": ".json", "array": ".npy", "model": ".onnx"}


@pytest.mark.parametrize("door", DOORS)
def test_a_damaged_file_is_an_error_of_ours(call, good, door, monkeypatch):
    source, command = DOORS[door]
    data = (good / source).read_bytes() if source else b'{"kind":"header","format":"x"}' * 9
    file = good / f"bad{SUFFIXES.get(door, '.bin')}"
    monkeypatch.delenv("INTARSIA_COSTS", raising=False)
    # a process reads a user's files once; this one goes on with other tests
    monkeypatch.setattr(REGISTRY.tags, "files", UserFiles(REGISTRY.tags.check_new))
    for name, content in spoilt(data):
        file.write_bytes(content)
        answer = call(*[str(file) if word == "FILE" else word for word in command])
        assert answer.code in (0, 1, 2), f"{name}: {answer}"
        if answer.code == 2:
            assert answer.err.startswith(("error:", "Usage")), f"{name}: {answer}"
        file.unlink(missing_ok=True)
    file.mkdir()
    answer = call(*[str(file) if word == "FILE" else word for word in command])
    assert (answer.code, answer.err.startswith("error:")) == (2, True), answer
    file.rmdir()
    missing = call(*[str(file) if word == "FILE" else word for word in command])
    assert missing.code == 2, missing


SHAPES = ("x", "x=", "=1", "x=1x", "x=-1x4", "x=9" * 9, "x=2x4x", "x=99999999999999999999999x4")


@pytest.mark.parametrize("text", [*SHAPES, "x=２x4", "x=1e3", "\udcff=2", "x=2x4\0"])  # noqa: RUF001
def test_a_shape_of_another_form_is_an_error_of_ours(call, model, text):
    answer = call("compile", model, "-t", "onnxruntime", "-o", "o", "--shape", text)
    assert (answer.code, answer.err.startswith("error:")) == (2, True), answer


DAMAGE = {
    "a verdict": "update intarsia_verdict set regions = 'x'",
    "a verdict's bytes": "update intarsia_verdict set regions = cast(x'ff41' as text)",
    "text": "update intarsia_key set backend = cast(x'ff41' as text)",
    "a number": "update intarsia_sample set seconds = 'soon'",
    "a table": "drop table intarsia_sample",
    "the schema": "update intarsia_meta set value = 'x'",
}


@pytest.fixture
def costs(folder):
    from dataclasses import fields

    from intarsia.cost.database import CostDatabase
    from intarsia.cost.key import CostKey, Sample
    from intarsia.cost.records import Assigned, PlanVerdict, VerdictKey

    with CostDatabase.open("c.sqlite") as database:
        database.add(CostKey("r", "llvm", "llvm 1", "m", "1"), [Sample(1.0, 1.0, "a", 0.0, "s")])
        names = [field.name for field in fields(VerdictKey)]
        key = VerdictKey(**dict.fromkeys(names, "k"))
        verdict = PlanVerdict(
            *((Assigned("llvm", ("n",)),), 1.0, "llvm", 1.0, 1.0, 0.9),
            is_mixed=False,
            decided_at=0.0,
            session="s",
            report="",
        )
        database.save_verdict(key, verdict)
    return key


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_database_is_an_error_of_ours(call, costs, damage):
    from intarsia.cost.direct import find_verdict
    from intarsia.errors import CostDatabaseError

    with sqlite3.connect("c.sqlite") as connection:
        connection.execute(DAMAGE[damage])
    connection.close()
    answers = [
        call("costs", "ls", "--all", "--database", "c.sqlite"),
        call("costs", "export", "--database", "c.sqlite"),
        call("costs", "merge", "c.sqlite", "--database", "other.sqlite"),
    ]
    assert {answer.code for answer in answers} <= {0, 2}, answers
    if "verdict" in damage:
        with pytest.raises(CostDatabaseError):
            find_verdict(costs, "c.sqlite")
    else:
        assert 2 in {answer.code for answer in answers}, answers
