# SPDX-License-Identifier: Apache-2.0
"""Measure how the source reads: its size, its names, its layers, and the path that a model takes.

    python scripts/measure_structure.py
    python scripts/measure_structure.py --source ../before/src --source src --json
    python scripts/measure_structure.py --path compile
    python scripts/measure_structure.py --page docs/architecture.md

Each source tree is a folder that holds `intarsia`, with a `pyproject.toml` beside or above it, of
which the contract of import-linter names the layers. The third form prints where the model goes;
the last one writes the rooms of that path into a page, or with `--check` exits with 1 if they
differ.

What is counted of the text, in all modules unless it says otherwise:

* modules: files but `__init__.py`; lines of code: without blanks, comments and docstrings.
* class names defined more than once: private and nested classes too.
* modules used by exactly one other: by `import` anywhere in it, under `TYPE_CHECKING` and in
  functions too; without `testing`, which is for those who write backends.
* settings read away from entry points: `Settings.from_environment`, `os.getenv` and `os.environ`
  outside `settings.py` and the layers from `compiler` up.
* tuple splats: arguments `*(a, b)` and `*[a, b]` of calls.
* comments: lines with one, of the lines that are not blank; licences and notes to tools aside.
* imports that point up: pairs of modules against the layers.

The path of a model is traced while a small one is compiled (`llvm, onnxruntime`, greedy) and tuned
(`onnxruntime, openvino`, for some seconds), with empty caches, in one thread:

* It is followed through the layers from `place` up. An event is the first call of a function that
  receives the model: its path, bytes, `ModelProto`, `onnx_ir.Model`, `Graph`, or a value of one of
  these layers that has one of them as a field. Neither `self`, nor a class method that makes such a
  value, nor a function inside of a function (a decorator's, for one) counts.
* Where it is handed to a layer below, that file is entered; what is done in there is not followed.
* To follow a call is to come back: before each event, the file of its caller is entered again.
* A room is a file. A stay is a run of events in one file. A climb is a step from a file to one of a
  higher layer.

The project types that such a compile names are the classes of ours, but for exceptions, in the text
of all functions of these layers that run, signatures included.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = "intarsia"
RUNS = {"compile": "llvm, onnxruntime", "tune": "onnxruntime, openvino"}
"""What is traced, and the targets."""

MODEL = """
<ir_version: 9, opset_import: ["" : 20]>
small (float[1,16,8,8] x) => (float[1,16,1,1] y)
<float[16] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}> {
    a = Mul(x, x)
    b = InstanceNormalization(a, w, w)
    c = Relu(b)
    y = GlobalAveragePool(c)
}"""
"""Any model takes the same path; tracing a large one takes half a minute."""

BUDGET_SECONDS = 5.0
LOWEST_FOLLOWED = "place"
LOWEST_ENTRY = "compiler"
KIT = f"{PACKAGE}.testing"
BEGIN, END = "<!-- rooms -->", "<!-- end of rooms -->"
"""The marks around the table of rooms in a page."""
NO_REMARK = re.compile(r"# (SPDX|noqa|type:|fmt:)")


class Source:
    """The modules of a source tree.

    Args:
        folder: The folder that holds the package.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.package = self.folder / PACKAGE
        self.files = {self._name(path): path for path in sorted(self.package.rglob("*.py"))}
        self.texts = {name: path.read_text("utf-8") for name, path in self.files.items()}
        self.layers = _layers(self.folder)

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The modules, parsed: a path is traced without."""
        return {name: ast.parse(text) for name, text in self.texts.items()}

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self.folder).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def layer(self, module: str) -> int:
        """Return the layer of a module, 0 being the highest; the package itself is above all."""
        top = module.split(".")[1] if "." in module else ""
        return self.layers.get(top, -1)

    def imports(self) -> Iterator[tuple[str, str]]:
        """Yield each pair of a module and one that it imports, wherever in its text."""
        for module, tree in self.trees.items():
            yield from ((module, name) for name in sorted(set(self._imported(tree)) - {module}))

    def _imported(self, tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name if name in self.files else node.module for name in names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


def _layers(folder: Path) -> dict[str, int]:
    """Return the number of the layer of each module or package, from the nearest contract."""
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if file.exists():
            contracts = tomllib.loads(file.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
            (rows,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
            return {
                name.strip(" ()"): number
                for number, row in enumerate(rows)
                for name in row.split("|")
            }
    raise SystemExit(f"no pyproject.toml above {folder}")


def measure_text(source: Source) -> dict[str, float]:
    """Return what is counted of the text."""
    files = [name for name, path in source.files.items() if path.name != "__init__.py"]
    classes = Counter(node.name for tree in source.trees.values() for node in _classes(tree))
    users = defaultdict(set)
    edges = [(user, used) for user, used in source.imports() if used in source.files]
    for user, used in edges:
        users[used].add(user)
    kit = {name for name in source.files if f"{name}.".startswith(f"{KIT}.")}
    alone = [name for name in files if name not in kit and len(users[name] - kit) == 1]
    entry = source.layers[LOWEST_ENTRY]
    inner = [name for name in files if source.layer(name) > entry and name != f"{PACKAGE}.settings"]
    lines = [line for text in source.texts.values() for line in text.splitlines() if line.strip()]
    remarks = sum(map(_remarks, source.texts.values()))
    return {
        "modules": len(files),
        "lines of code": sum(map(_code_lines, source.texts.values(), source.trees.values())),
        "class names defined more than once": sum(count > 1 for count in classes.values()),
        "modules used by exactly one other": len(alone),
        "settings read away from entry points": sum(_reads(source.trees[name]) for name in inner),
        "tuple splats": sum(map(_splats, source.trees.values())),
        "comments, per cent of the lines": round(100 * remarks / len(lines), 2),
        "imports that point up": sum(_points_up(source, *edge) for edge in edges),
    }


def _classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _code_lines(text: str, tree: ast.Module) -> int:
    kinds = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*kinds, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if first is not None and ast.get_docstring(node, clean=False) is not None:
                lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def _remarks(text: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = (token.string for token in tokens if token.type == tokenize.COMMENT)
    return sum(NO_REMARK.match(comment) is None for comment in comments)


def _reads(tree: ast.AST) -> int:
    names = (node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return sum(name in ("from_environment", "environ", "getenv") for name in names)


def _splats(tree: ast.AST) -> int:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sum(
        isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple | ast.List)
        for call in calls
        for argument in call.args
    )


def _points_up(source: Source, user: str, used: str) -> bool:
    tops = [name.split(".")[1:2] for name in (user, used)]
    return bool(tops[0] and tops[1] and tops[0] != tops[1]) and (
        source.layer(used) <= source.layer(user)
    )


@dataclass(frozen=True, slots=True)
class Event:
    """The first call of a function that receives the model.

    Attributes:
        file: Of the function, below the package.
        function: Its name.
        value: What carried the model to it: a type.
        caller: File of the function of ours that called it; empty if there is none.
    """

    file: str
    function: str
    value: str
    caller: str


class Tracer:
    """Follows a model through the functions of a package, as a profiling function.

    Args:
        root: Folder of the package.
        is_followed: Tells of each of its top modules and packages whether calls in it are followed.
        model: Path of the model.
        types: Types that are the model.
    """

    def __init__(
        self, root: Path, is_followed: dict[str, bool], model: str, types: tuple[type, ...]
    ) -> None:
        self._root = f"{root}{os.sep}"
        self._is_followed = is_followed
        self._model = model
        self._types = types
        self._inside: FrameType | None = None  # the call into a layer that is not followed
        self._events: dict[CodeType, Event] = {}
        self.ran: set[CodeType] = set()

    @property
    def events(self) -> list[Event]:
        """What happened, in order."""
        return list(self._events.values())

    def __call__(self, frame: FrameType, what: str, _: object) -> None:
        """Note a call of a function of ours."""
        if what == "return":
            if frame is self._inside:
                self._inside = None
            return
        code = frame.f_code
        if what != "call" or not code.co_filename.startswith(self._root):
            return
        follows = self._follows(code)
        if follows:
            self.ran.add(code)
        if self._inside is not None:
            return
        value = "" if "<locals>" in code.co_qualname else self._received(frame)
        if not value:
            return
        above = self._caller(frame)
        if above is not None and not self._follows(above):
            return
        if code not in self._events:
            caller = "" if above is None else self._file(above)
            self._events[code] = Event(self._file(code), code.co_qualname, value, caller)
        if not follows:
            self._inside = frame

    def _file(self, code: CodeType) -> str:
        return Path(code.co_filename[len(self._root) :]).as_posix()

    def _follows(self, code: CodeType) -> bool:
        return self._is_followed.get(self._file(code).split("/")[0].removesuffix(".py"), False)

    def _caller(self, frame: FrameType) -> CodeType | None:
        above = frame.f_back
        while above is not None:
            code = above.f_code
            if code.co_filename.startswith(self._root) and "<locals>" not in code.co_qualname:
                return code
            above = above.f_back
        return None

    def _received(self, frame: FrameType) -> str:
        code = frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount
        for name in code.co_varnames[:count]:
            if name == "cls":
                return ""
            value = frame.f_locals.get(name)
            if name != "self" and (self._is_model(value) or self._carries(value)):
                return type(value).__name__
        return ""

    def _is_model(self, value: object) -> bool:
        if isinstance(value, str | os.PathLike):
            return os.fspath(value) == self._model
        return isinstance(value, self._types)

    def _carries(self, value: object) -> bool:
        """Tell whether a value of a layer that is followed has the model as a field."""
        names = type(value).__module__.split(".")
        if names[0] != PACKAGE or not self._is_followed.get("".join(names[1:2]), False):
            return False
        held = [vars(value)] if hasattr(value, "__dict__") else []
        fields_found = [item for fields_of in held for item in fields_of.values()]
        if is_dataclass(value):
            fields_found += [getattr(value, field.name, None) for field in fields(value)]
        return any(map(self._is_model, fields_found))


def trace(source: Source, run: str) -> dict[str, Any]:
    """Run the pipeline in this process, and return its events and the functions that ran."""
    sys.path.insert(0, str(source.folder))
    import onnx
    import onnx.parser
    import onnx_ir

    import intarsia
    from intarsia.graph.graph import Graph

    lowest = source.layers[LOWEST_FOLLOWED]
    is_followed = {name: number <= lowest for name, number in source.layers.items()}
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "model.onnx")
        onnx.save(onnx.parser.parse_model(MODEL), model)
        types = (onnx.ModelProto, onnx_ir.Model, Graph)
        tracer = Tracer(source.package, is_followed, model, types)
        sys.setprofile(tracer)
        try:
            if run == "compile":
                intarsia.compile(model, RUNS[run], placement="greedy", num_threads=1)
            else:
                intarsia.tune(model, RUNS[run], budget=BUDGET_SECONDS, num_threads=1)
        finally:
            sys.setprofile(None)
    ran = [[code.co_filename, code.co_firstlineno] for code in tracer.ran]
    return {"events": [asdict(event) for event in tracer.events], "ran": ran}


def trace_elsewhere(source: Source, run: str) -> tuple[list[Event], list[tuple[str, int]]]:
    """Trace in a process of its own, with caches of its own, and return events and functions."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,  # noqa: TID251 - handed on, not read
            "PYTHONPATH": str(source.folder),
            "OPENBLAS_NUM_THREADS": "1",
            "INTARSIA_CACHE_DIR": f"{folder}/cache",
            "INTARSIA_COSTS": f"{folder}/costs.sqlite",
        }
        command = [sys.executable, __file__, "--source", str(source.folder), "--trace", run]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    events = [Event(**event) for event in answer["events"]]
    return events, [(file, line) for file, line in answer["ran"]]


def walk(events: Sequence[Event]) -> list[str]:
    """Return the files of a path, each run of events in one file once, with the ways back."""
    files = [file for event in events for file in (event.caller, event.file) if file]
    return [file for i, file in enumerate(files) if not i or file != files[i - 1]]


def measure_path(source: Source, run: str) -> dict[str, float]:
    """Return the rooms, stays and climbs of a path; of compiling, the types that it names too."""
    events, ran = trace_elsewhere(source, run)
    stays = walk(events)
    layers = [source.layer(f"{PACKAGE}.{file.split('/')[0].removesuffix('.py')}") for file in stays]
    measured: dict[str, float] = {
        f"{run}: rooms": len(set(stays)),
        f"{run}: stays": len(stays),
        f"{run}: climbs": sum(after < before for before, after in pairwise(layers)),
    }
    if run == "compile":
        measured["project types named by a greedy compile"] = len(_types_named(source, ran))
    return measured


def _types_named(source: Source, ran: Sequence[tuple[str, int]]) -> set[str]:
    """Return the classes of ours, but for exceptions, that functions name."""
    ours = {node.name for tree in source.trees.values() for node in _classes(tree)}
    ours -= {node.name for node in _classes(source.trees[f"{PACKAGE}.errors"])}
    ours = {name for name in ours if not name.endswith("Error")}
    lines = defaultdict(set)
    for file, line in ran:
        lines[file].add(line)
    named: set[str] = set()
    for module, path in source.files.items():
        tree = source.trees[module]
        foreign = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(PACKAGE)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                if first in lines[str(path)]:
                    named |= _names(node) & ours - foreign
    return named


def _names(tree: ast.AST) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def with_path(page: str, events: Sequence[Event]) -> str:
    """Return a page with the rooms of a path between its marks: a row each, by the first event."""
    rooms: dict[str, Event] = {}
    for event in events:
        rooms.setdefault(event.file, event)
    rows = [
        f"| {number} | `{room}` | `{event.function}` | `{event.value}` |\n"
        for number, (room, event) in enumerate(rooms.items(), start=1)
    ]
    table = "".join(["| | room | entered by | with |\n|---|---|---|---|\n", *rows])
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}"


def main() -> int:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description="Measure how the source reads.")
    parser.add_argument("--source", type=Path, action="append", help="a folder that holds intarsia")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--text-only", action="store_true", help="trace nothing")
    parser.add_argument("--path", choices=RUNS, help="print where the model goes, in order")
    parser.add_argument("--page", type=Path, help="write the rooms of compile into a page")
    parser.add_argument("--check", action="store_true", help="with --page: only compare")
    parser.add_argument("--trace", choices=RUNS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    here = Path(__file__).parents[1] / "src"
    sources = [Source(folder) for folder in given.source or [here]]
    if given.trace:
        sys.stdout.write(json.dumps(trace(sources[0], given.trace)) + "\n")
        return 0
    if given.page:
        page = given.page.read_text("utf-8")
        new = with_path(page, trace_elsewhere(sources[0], "compile")[0])
        if given.check:
            return int(new != page)
        given.page.write_text(new, "utf-8")
        return 0
    if given.path:
        events, _ = trace_elsewhere(sources[0], given.path)
        rows = [f"{event.file}: {event.function}({event.value})\n" for event in events]
        steps = [asdict(event) for event in events]
        sys.stdout.write(json.dumps(steps, indent=2) + "\n" if given.json else "".join(rows))
        return 0
    measured = [measure_text(source) for source in sources]
    for source, values in zip(sources, measured, strict=True):
        for run in () if given.text_only else RUNS:
            values.update(measure_path(source, run))
    if given.json:
        answer = {
            str(source.folder): values for source, values in zip(sources, measured, strict=True)
        }
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
        return 0
    titles = ["what", *(str(source.folder) for source in sources)]
    sys.stdout.write(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n")
    for name in measured[0]:
        cells = [name, *(f"{values[name]:g}" for values in measured)]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
