# SPDX-License-Identifier: Apache-2.0
"""How often a race of plans is wrong, on this machine and with real backends.

    python benchmarks/races.py MODEL [--target llvm] [--beside onnxruntime] [--threads 2]
                               [--trials 20] [--file SAMPLES.json]

The plan of `--target` and the same compiled once more take part in every round; with `--beside` a
third plan only disturbs. Samples are taken as the tuner takes them. Two equal plans are these. Two
that differ by exactly 5 % are the first, and one whose samples are those of its twin, each made 5 %
longer.

A trial is looked at as the final of a tuner looks at its rounds: after 3, 6, 12 and 24, and after
48 if no winner is clear before. Two copies of one plan lie elsewhere in memory, and may really
differ by half a percent; so it is also drawn in each round which of them is which, and equal plans
are declared different if the interval of that ratio leaves 1 out. What would do harm is that one
copy is accepted in place of the other. A winner is wrong if it is the slower plan, which comes
first in the order of ties.

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

import numpy as np

import intarsia
from intarsia.measure.racing import RaceResult, confirm, halve, paired_ratio
from intarsia.runtime.feeds import sample_feeds
from intarsia.tuning.finalists import LOOKS, TIE
from intarsia.tuning.laboratory.sampling import Sampler, TimedRun, time_in_rounds
from zoo import model_file  # the script beside this one

SLOWER_BY = 0.05
DRAWS = 20
ONE, TWIN, SLOWER = range(3)
ROUNDS, MOST_ROUNDS = LOOKS[-2:]
Trial = Sequence[list[float]]


def main() -> int:
    """Measure, and print how often races are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--beside")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(".zoo"))
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    trials: list[list[list[float]]] = []
    if options.file and options.file.exists():
        trials = json.loads(options.file.read_text())
    subjects = make_subjects(options)
    sampler = Sampler()
    unfinished = [trial for trial in trials if not is_over(trial)]  # of a run that was ended
    for index in range(max(options.trials, len(unfinished))):
        if index < len(unfinished):
            trial = unfinished[index]
        else:
            trial = [[], []]
            trials.append(trial)
        while not is_over(trial):
            rounds = MOST_ROUNDS - ROUNDS if trial[ONE] else ROUNDS
            seed = 2 * len(trials) + bool(trial[ONE])
            samples = time_in_rounds(sampler, subjects, rounds, seed=seed)
            for row, seconds in zip(trial, samples.seconds, strict=False):
                row.extend(seconds)
        if options.file:
            options.file.write_text(json.dumps(trials))
    report(trials)
    return 0


def make_subjects(options: argparse.Namespace) -> list[TimedRun]:
    """Return what takes part in every round."""
    path = model_file(options.model, options.out)
    subjects = []
    for target in (options.target, options.target, *([options.beside] if options.beside else [])):
        program = intarsia.compile(path, target, num_threads=options.threads, placement="greedy")
        context = program.context(sample_feeds(program.inputs))
        context.run()
        subjects.append(TimedRun(context.step(), num_threads=options.threads))
    return subjects


def report(trials: Sequence[Trial]) -> None:
    """Print what the trials say."""
    clear = sum(is_clear(trial) for trial in trials)
    apart = sum(is_clear(trial, TIE) for trial in trials)
    drawn = [exchanged(trial, seed) for trial in trials for seed in range(DRAWS)]
    equal = sum(map(is_clear, drawn))
    accepted = sum(
        is_accepted(trial, ONE, TWIN) or is_accepted(trial, TWIN, ONE) for trial in trials
    )
    wrong = sum(race(trial, SLOWER, ONE).winner != ONE for trial in trials)
    one, twin = (list(chain.from_iterable(trial[key] for trial in trials)) for key in (ONE, TWIN))
    noise = float(np.std(np.log(np.divide(twin, one))))
    print(f"{len(trials)} trials, {len(one)} rounds, noise of a round {noise:.1%}")
    print(f"equal plans, all rounds: {paired_ratio(twin, one)}")
    print(f"the two copies declared different: {clear / len(trials):.1%}")
    print(f"the same, by more than a tie ({TIE:.0%}): {apart / len(trials):.1%}")
    print(f"equal plans declared different: {equal / len(drawn):.1%}")
    print(f"equal plans, one accepted in place of the other: {accepted / len(trials):.1%}")
    print(f"wrong winner at {SLOWER_BY:.0%}: {wrong / len(trials):.1%}")


def rows_of(trial: Trial) -> Trial:
    """Return the samples of a trial with those that are exactly 5 % longer than a plan's."""
    return (*trial, [(1 + SLOWER_BY) * seconds for seconds in trial[TWIN]])


def measurer(trial: Trial) -> Callable[[Sequence[int], int], Mapping[int, Sequence[float]]]:
    """Return what gives rounds of a trial in their order, and none when there are no more."""
    rows, done = rows_of(trial), 0

    def measure(keys: Sequence[int], rounds: int) -> Mapping[int, Sequence[float]]:
        nonlocal done
        done += rounds
        return {key: rows[key][done - rounds : done] for key in keys}

    return measure


def is_over(trial: Trial) -> bool:
    """Whether a trial has all its rounds, or its winner is clear."""
    rounds = len(trial[ONE])
    return rounds >= MOST_ROUNDS or (rounds >= ROUNDS and race(trial, SLOWER, ONE).is_decided)


def race(trial: Trial, *keys: int, tie: float = TIE) -> RaceResult[int]:
    """Return the result of a final."""
    return halve(keys, measurer(trial), looks=LOOKS, tie=tie)


def is_clear(trial: Trial, tie: float = 0.0) -> bool:
    """Whether two plans are told apart; without a tie, however little they differ."""
    return any(ratio.low > 1.0 + tie for ratio in race(trial, ONE, TWIN, tie=tie).ratios.values())


def exchanged(trial: Trial, seed: int) -> Trial:
    """Return a trial in which it is drawn in each round which of the two copies is which."""
    random = np.random.default_rng(seed)
    rounds = zip(trial[ONE], trial[TWIN], strict=True)
    pairs = [pair[::-1] if random.random() < 1 / 2 else pair for pair in rounds]
    return [list(samples) for samples in zip(*pairs, strict=True)]


def is_accepted(trial: Trial, chosen: int, rival: int) -> bool:
    """Whether a plan is accepted in place of a rival."""
    return confirm(chosen, (rival,), measurer(trial)).is_accepted


if __name__ == "__main__":
    sys.exit(main())
