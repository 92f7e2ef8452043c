# SPDX-License-Identifier: Apache-2.0
"""What the documentation shows at a prompt works as it is pasted, and prints what is shown."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.c_compiler import compile_c
from tests.end_to_end.consoles import PAGES, ROOT, blocks_of, commands_of, is_shown
from tests.opencl import has_device

from intarsia import zoo
from intarsia.backends.registry import load_backends
from intarsia.native import objects
from intarsia.settings import Settings

SHORTER = {
    "--budget 120s": "--budget 4s",
    "--budget 30s": "--budget 3s",
    "--graphs 10000": "--graphs 3",
    "--rounds 7": "--rounds 3",
    "resnet50": "squeezenet",
    "--grpc-port 8001": "--port 0 --grpc-port 0",
}
"""What a page gives more time than a test has, and ports that another test may have."""

FAST = ("docs/guide.md",)
"""Pages whose commands take a second or two each."""

LONG_LINE = 80
MODEL = """
<ir_version: 9, opset_import: ["" : 20]>
towers (float[1,4,16,16] left, float[1,4,16,16] right) => (float[1,4,1,1] y)
<float[4,4,3,3] v, float[4,4,3,3] w> {
    ["left/conv"]  a = Conv<pads = [1, 1, 1, 1]>(left, v)
    ["left/act"]   b = Tanh(a)
    ["left/pool"]  c = GlobalAveragePool(b)
    ["right/conv"] d = Conv<pads = [1, 1, 1, 1]>(right, w)
    ["right/act"]  e = Tanh(d)
    ["right/pool"] f = GlobalAveragePool(e)
    ["meet"]       y = Add(c, f)
}"""
"""What a page calls `model.onnx`."""

BEFORE = {
    "docs/costs.md": (
        'intarsia tune model.onnx -t "openvino, onnxruntime" --budget 20s',
        "intarsia plan lock model.intarsia -o plan.lock.json",
        "cp costs.sqlite other.sqlite && cp costs.sqlite before.sqlite",
        "cp costs.sqlite after.sqlite",
    ),
    "docs/verify.md": (
        "intarsia compile model.onnx -t llvm",
        "python -c 'import numpy as np; x = np.ones((1, 4, 16, 16), np.float32);"
        ' np.savez("inputs.npz", left=x, right=-x)\'',
    ),
}
"""What was done before, by what a page says."""


class Desk:
    """A folder of its own where commands are typed, of somebody who has done nothing yet.

    Self-tests have passed, though, and kernels are there that other pages have compiled.
    """

    def __init__(self, folder, cache):
        self.folder = folder
        (folder / "home").mkdir()
        for name in ("benchmarks", "examples"):
            (folder / name).symlink_to(ROOT / name)
        ours = ("INTARSIA_", "COLUMNS", "PIP_")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "COLUMNS": str(LONG_LINE),
            "INTARSIA_CACHE_DIR": str(cache),
            "INTARSIA_COSTS": str(folder / "costs.sqlite"),
            "INTARSIA_OPENCL_DEVICES": "0,0",  # every machine has two of what it has
            "PIP_DRY_RUN": "1",  # what is to be installed has to be there already
            "PIP_NO_INDEX": "1",
        }

    def bring(self, text):
        """Make the models and libraries that a command names, unless it has them."""
        for name in re.findall(r"\b(\w+)\.onnx\b", text):
            file = self.folder / f"{name}.onnx"
            if not file.exists():
                model = zoo.build(name) if name in zoo.models() else _small_model()
                onnx.save(model, file)
        for name in re.findall(r"custom_ops=([\w/.]+)", text):
            file = self.folder / name
            file.parent.mkdir(exist_ok=True)
            source = ROOT / "tests" / "backends" / "custom_op.c"
            compile_c("-shared", "-fPIC", "-O1", "-o", file, source)

    def type(self, text):
        """Run a command, and return its exit code and all that it prints."""
        self.bring(text)
        done = subprocess.run(
            # the trap keeps bash there: a command may ask which shell it was called from
            ["bash", "-euo", "pipefail", "-c", f"trap : EXIT\n{text}"],
            cwd=ROOT if text.startswith("make ") else self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=1200,
        )
        assert "Traceback" not in done.stdout, f"{text}\n{done.stdout}"
        return done.returncode, done.stdout


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """Kernels that other pages have compiled: entries by content, the same in every cache."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return folder / "kernels_of_pages"


def share(source, target):
    """Make what is kept in one folder part of another."""
    target.mkdir(exist_ok=True)
    for file in source.glob("*.o"):
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            (target / file.name).hardlink_to(file)


@pytest.fixture
def desk(tmp_path, own_cache, kernels):
    folder = tmp_path / "desk"
    folder.mkdir()
    share(kernels, own_cache / objects.KIND)
    yield Desk(folder, own_cache)
    share(own_cache / objects.KIND, kernels)


def _small_model():
    model = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for name in ("v", "w"):
        weights = rng.standard_normal((4, 4, 3, 3)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page in FAST else pytest.mark.exhaustive)
        for page in PAGES
        if commands_of(page)
    ],
)
def test_the_commands_of_a_page_run_one_after_another(page, desk):
    for text in BEFORE.get(page, ()):
        code, printed = desk.type(text)
        assert code == 0, printed
    skipped = []
    for command in commands_of(page):
        where = f"{page}:{command.line}: $ {command.text}\n"
        if "opencl" in command.text and not has_device():
            skipped.append(command.text)
        elif command.mark == "takes hours":
            check_options(desk, command.text, where)
        elif command.mark == "until stopped":
            check_stop(desk, command, where)
        elif command.mark:
            check_need(desk, command, where)
        else:
            code, printed = desk.type(adapted(desk, command.text))
            assert code in command.codes, where + printed
            assert "…" not in printed, where + printed  # no figure is cut
            if command.shown:
                shown = [shorter(line) for line in command.shown]
                assert is_shown(shown, printed.splitlines()), where + printed
    if skipped:
        pytest.skip(f"no OpenCL works here: {len(skipped)} commands of {page}")


def shorter(text):
    """Return a text with what takes less time in the place of what takes more."""
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    return text


def adapted(desk, text):
    """Return a command with less time, of a checkout that is here, and of costs that there are."""
    text = shorter(text)
    if text.startswith("make "):
        return text.replace("make ", "make -n ", 1)  # it would run these tests; `.ci/run` does
    if text.startswith("intarsia costs show "):
        _, printed = desk.type("intarsia costs ls --json")
        key = re.search(r'"key": "(\w+)"', printed)[1]
        return f"intarsia costs show {key[:6]}"
    if "--frozen plan.lock.json" in text:
        lock = desk.folder / "plan.lock.json"
        here = load_backends(Settings.from_environment()).by_name["openvino"].version()
        content = lock.read_text(encoding="utf-8")
        # Of a plan without it nothing has changed, and the page's output says whether it has.
        lock.write_text(content.replace(here, "2000.1.0"), encoding="utf-8")
    return text


def check_options(desk, text, where):
    """A program that takes hours knows at least the options that it is given."""
    words = shlex.split(text, comments=True)
    comment = text.partition(" # ")[2]
    code, printed = desk.type(f"{words[0]} {words[1]} --help")
    assert code == 0, where + printed
    for option in re.findall(r"--[\w-]+", f"{' '.join(words)} {comment}"):
        assert option in printed, where + printed


def check_stop(desk, command, where):
    """A command that runs until it is stopped says what the page shows, and then ends well."""
    shown = [shorter(line) for line in command.shown]
    with subprocess.Popen(
        shlex.split(shorter(command.text)),
        cwd=desk.folder,
        env=desk.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as running:
        watchdog = threading.Timer(600, running.kill)
        watchdog.start()
        printed = []
        for line in running.stdout:
            printed.append(line.rstrip())
            if is_shown(shown, printed):
                break
        running.terminate()
        rest, _ = running.communicate()
        watchdog.cancel()
    assert is_shown(shown, printed), where + "\n".join(printed) + rest
    assert running.returncode == 0, where + rest


def check_need(desk, command, where):
    """A command runs if what it needs is here, and else says what that is."""
    kind = command.mark.removeprefix("needs ")
    code, printed = desk.type(command.text)
    backend = load_backends(Settings.from_environment()).by_kind.get(kind)
    if backend and kind in {target.kind.name for target in backend.detect().targets}:
        assert code == 0, where + printed
    elif code:
        assert code in (2, 3), where + printed
        assert kind in printed, where + printed
        assert "hint: " in printed, where + printed


def test_every_command_is_in_a_console_block_that_is_run_or_says_why_not():
    typed = re.compile(r"^(\$ |intarsia |pip |make |python -m |python \w+/)", re.MULTILINE)
    known = re.compile(r"(takes hours|until stopped|needs [a-z0-9_-]+)?")
    for page in PAGES:
        for block in blocks_of(page):
            where = f"{page}:{block.line}"
            if block.language == "console":
                assert block.text.startswith("$ "), where
                assert known.fullmatch(block.mark), where
            else:
                assert not typed.search(block.text), where


def test_the_pages_have_something_to_paste():
    texts = [command.text for page in PAGES for command in commands_of(page)]
    assert sum(text.startswith("intarsia ") for text in texts) >= 30
    assert sum(len(command.shown) > 0 for page in PAGES for command in commands_of(page)) >= 3


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("wrote 12.5 KiB", "wrote 9 KiB", True),
        ("wrote 12.5 KiB", "wrote nothing", False),
        ("attributes: a, b, ...", "attributes: a, b, c", True),
        ("attributes: a, b", "attributes: a, b, c", False),
        ("ok: f(x)", "ok: f(x)", True),
    ],
)
def test_what_is_shown_is_compared_but_for_figures(shown, printed, expected):
    assert is_shown([shown], [printed]) is expected
    assert not is_shown([shown], [printed, printed])
