# SPDX-License-Identifier: Apache-2.0
"""What `--json` prints is what the schemas say, of every command."""

import importlib.util
import json
import sys
from pathlib import Path

import jsonschema
import pytest
import typer
from jsonschema.exceptions import best_match
from tests.cli.invocations import INVOCATIONS, SLOW, list_commands

from intarsia.cli.program import app

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
OTHERS = {
    "compile": [("chain.onnx", "--emit", "c", "-o", "out")],
    "explain": [
        ("chain.intarsia", "--not-on", "fake -ops=Relu,Tanh"),
        ("tuned.intarsia", "--node", "second"),
    ],
    "bench": [("chain.onnx", "-t", "llvm", "--profile", "--rounds", "3")],
    "target show": [("opencl:1",)],
    "verify": [("chain.onnx", "--suspect", "onnxruntime", "--against", "reference")],
}
"""Ways to call commands that make them print something else than `INVOCATIONS` does."""


def _strict(schema):
    """Return a schema in which no object has a field that is not described."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _strict(one) for name, one in schema.items()}
    if "properties" in schema:
        closed["additionalProperties"] = False
    return closed


def validator(name):
    """Return what holds a value to the schema of a command, and to every field of it."""
    schema = json.loads((SCHEMAS / f"{name.replace(' ', '-')}.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(_strict(schema))


ELSEWHERE = ("demo",)
"""Commands that are held to their schemas where they run anyway: it takes half a minute."""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=pytest.mark.exhaustive if c in SLOW else ())
        for c in INVOCATIONS
        if c not in ELSEWHERE
    ],
)
def test_what_a_command_prints_as_json_is_what_its_schema_says(command, desk):
    described = validator(command)
    for arguments in (*INVOCATIONS[command], *OTHERS.get(command, ())):
        answer = desk(command, (*arguments, "--json"))
        assert answer.code in (0, 1), answer.err
        wrong = best_match(described.iter_errors(answer.json))
        assert wrong is None, f"{wrong.json_path}: {wrong.message[:500]}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "missing.onnx"),
        ("compile", "chain.onnx", "-t", "lvm"),
        ("compile", "chain.onnx", "--bogus"),
        ("target", "show", "llvm -mcpu"),
    ],
)
def test_an_error_is_what_its_schema_says(arguments, call, model):
    answer = call(*arguments, "--json")
    assert answer.code == 2
    validator("error").validate(answer.json)


def test_a_field_that_is_not_described_is_seen(call):
    described = validator("target diff")
    told = call("target", "diff", "llvm -num-cores=2", "llvm -num-cores=3", "--json").json
    described.validate(told)
    for wrong in ({**told, "more": 1}, {**told, "left": 1}, {"left": "llvm"}):
        assert not described.is_valid(wrong)


def test_every_command_has_json_and_a_schema():
    commands = typer.main.get_command(app)
    for path in list_commands():
        command = commands
        for word in path.split():
            command = command.commands[word]
        assert any("--json" in one.opts for one in command.params), path
    files = {file.stem for file in SCHEMAS.glob("*.json")}
    assert files == {*(path.replace(" ", "-") for path in list_commands()), "error"}


def test_the_schemas_are_up_to_date(capsys, monkeypatch):
    file = ROOT / "scripts" / "make_schemas.py"
    spec = importlib.util.spec_from_file_location("make_schemas", file)
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make_schemas", script)  # where its types are looked up
    spec.loader.exec_module(script)
    assert script.main(["--check", str(SCHEMAS)]) == 0, capsys.readouterr().err
