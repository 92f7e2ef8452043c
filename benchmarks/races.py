# SPDX-License-Identifier: Apache-2.0
"""How often a race of plans is wrong, on this machine and with real backends.

    python benchmarks/races.py MODEL [--target llvm] [--beside onnxruntime] [--threads 2]
                               [--trials 20] [--rounds 24] [--file SAMPLES.json]

Three plans take part in every round: the plan of `--target`, the same compiled once more, and once
more with a wait after each run that is exactly 5 % of that run. The first two are equal, the third
is exactly 5 % slower, and the samples are taken as the tuner takes them. A fourth plan, `--beside`,
only disturbs.

A trial is some rounds, looked at as the final of a tuner looks at them. Equal plans are declared
different if the interval of their ratio leaves 1 out; what would do harm is that one is accepted in
place of the other. A winner is wrong if the slower plan wins, which comes first in the order of
ties.

With `--file`, the samples are added to those in the file and all of them count: a machine that is
seldom quiet can be asked in pieces.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from time import perf_counter

import numpy as np

import intarsia
from intarsia.place.collage.finalists import FINAL_LOOKS
from intarsia.place.collage.sampling import Sampler, Subject, time_in_rounds
from intarsia.runtime.racing import CONFIRMING_LOOKS, confirm, halve, paired_ratio
from intarsia.runtime.samples import sample_feeds
from intarsia.zoo import build

SLOWER_BY = 0.05
ONE, TWIN, SLOWER = range(3)
Samples = Sequence[Sequence[float]]


def main() -> int:
    """Measure, and print how often races are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--beside", default="onnxruntime")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    trials: list[Samples] = []
    if options.file and options.file.exists():
        trials = json.loads(options.file.read_text())
    subjects = make_subjects(options)
    sampler = Sampler(num_threads=options.threads)
    for trial in range(len(trials), len(trials) + options.trials):
        trials.append(time_in_rounds(sampler, subjects, options.rounds, seed=trial).seconds[:3])
        if options.file:
            options.file.write_text(json.dumps(trials))
    report(trials)
    return 0


def make_subjects(options: argparse.Namespace) -> list[Subject]:
    """Return what takes part in every round."""
    path = options.out / f"{options.model}.onnx"
    if not path.exists():
        options.out.mkdir(exist_ok=True)
        path.write_bytes(build(options.model).SerializeToString())
    subjects = []
    for target in (*(options.target,) * 3, options.beside):
        program = intarsia.compile(path, target, num_threads=options.threads, placement="greedy")
        context = program.context(sample_feeds(program.inputs))
        start = perf_counter()
        context.run()
        run = context.step()
        if len(subjects) == SLOWER:
            run = slowed(run, SLOWER_BY)
        subjects.append(Subject(run, typical_seconds=perf_counter() - start))
    return subjects


def slowed(run: Callable[[], object], part: float) -> Callable[[], None]:
    """Return a function that runs something and then waits for a part of the time it took."""

    def run_and_wait() -> None:
        start = perf_counter()
        run()
        end = perf_counter()
        until = end + part * (end - start)
        while perf_counter() < until:
            pass

    return run_and_wait


def report(trials: Sequence[Samples]) -> None:
    """Print what the trials say."""
    clear = sum(is_clear(trial, ONE, TWIN) for trial in trials)
    accepted = sum(
        is_accepted(trial, ONE, TWIN) or is_accepted(trial, TWIN, ONE) for trial in trials
    )
    wrong = sum(winner(trial, (SLOWER, ONE)) != ONE for trial in trials)
    every = [list(chain.from_iterable(trial[key] for trial in trials)) for key in range(3)]
    noise = float(np.std(np.log(np.divide(every[TWIN], every[ONE]))))
    print(f"{len(trials)} trials, noise of a round {noise:.1%}")
    print(f"equal plans, all rounds: {paired_ratio(every[TWIN], every[ONE])}")
    print(f"slower plan, all rounds: {paired_ratio(every[SLOWER], every[ONE])}")
    print(f"equal plans, one clearly slower: {clear / len(trials):.1%}")
    print(f"equal plans, one accepted in place of the other: {accepted / len(trials):.1%}")
    print(f"slower plan wins: {wrong / len(trials):.1%}")


def measurer(trial: Samples) -> Callable[[Sequence[int], int], Mapping[int, Sequence[float]]]:
    """Return what gives rounds of a trial in their order, as if they were measured now."""
    done = 0

    def measure(keys: Sequence[int], rounds: int) -> Mapping[int, Sequence[float]]:
        nonlocal done
        done += rounds
        return {key: trial[key][done - rounds : done] for key in keys}

    return measure


def looks_of(looks: Sequence[int], trial: Samples) -> tuple[int, ...]:
    """Return the looks for which a trial has rounds."""
    return tuple(look for look in looks if look <= len(trial[ONE]))


def is_clear(trial: Samples, one: int, other: int) -> bool:
    """Whether two plans are told apart, however little they differ."""
    looks = looks_of(FINAL_LOOKS, trial)
    result = halve((one, other), measurer(trial), looks=looks, tie=0.0)
    return any(ratio.is_clear for ratio in result.ratios.values())


def is_accepted(trial: Samples, chosen: int, rival: int) -> bool:
    """Whether a plan is accepted in place of a rival."""
    looks = looks_of(CONFIRMING_LOOKS, trial)
    return confirm(chosen, (rival,), measurer(trial), looks=looks).is_accepted


def winner(trial: Samples, keys: Sequence[int]) -> int | None:
    """Return who wins a race; the first in the order wins a tie."""
    return halve(keys, measurer(trial), looks=looks_of(FINAL_LOOKS, trial)).winner


if __name__ == "__main__":
    sys.exit(main())
