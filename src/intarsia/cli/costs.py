# SPDX-License-Identifier: Apache-2.0
"""`intarsia costs ls|show|export|import|merge|diff|prune`: the cost database.

`intarsia cache info|clear`: the one folder of all caches, where the database is by default.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from intarsia.cli.files import writable_plot
from intarsia.cli.options import JsonOption, PlotOption
from intarsia.cli.output import note, show, show_json, size_text, write
from intarsia.errors import CostDatabaseError, SettingError
from intarsia.files import whole_file, writing_hint
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.cache import CacheInfo
    from intarsia.cost.database import CostDatabase
    from intarsia.cost.selection import CostEntry, Selection

app = typer.Typer(no_args_is_help=True, help="Show, share and remove measured costs.")

MOST_ROWS = 40
"""Rows unless all are asked for."""

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_STANDARD = "-"

DatabaseOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--database", "-d", metavar="FILE|URL", help="The database. Default: INTARSIA_COSTS."
    ),
]
RegionOption: TypeAlias = Annotated[
    str, typer.Option("--region", metavar="HASH", help="Only regions whose hash starts with this.")
]
TargetTextOption: TypeAlias = Annotated[
    str, typer.Option("--target", "-t", metavar="TEXT", help="Only targets that contain it.")
]
BackendOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--backend", metavar="NAME", help="Only backends whose name and version start with this."
    ),
]
MachineOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--machine", metavar="DIGEST", help="Only this fingerprint; `here` is this machine's."
    ),
]
AllOption: TypeAlias = Annotated[bool, typer.Option("--all", help="List everything.")]


@app.command("ls")
def ls_command(
    *,
    database: DatabaseOption = None,
    region: RegionOption = "",
    target: TargetTextOption = "",
    backend: BackendOption = "",
    machine: MachineOption = "",
    every: AllOption = False,
    json: JsonOption = False,
) -> None:
    """List what was measured: a line for each region, target and circumstance."""
    from intarsia.cost.selection import count_keys, read_entries

    selection = _selection(region, target, backend, machine)
    with _open(database) as costs:
        total = count_keys(costs, selection)
        entries = list(read_entries(costs, selection, None if every or json else MOST_ROWS))
        name = costs.store.name
    if json:
        show_json({"database": name, "entries": [_summary(entry) for entry in entries]})
        return
    from intarsia.report.costs import entries_table

    more = (
        f", the first {len(entries)} of them here (--all lists them)"
        if len(entries) < total
        else ""
    )
    write(f"{name}: {total} keys{more}\n")
    if entries:
        show(entries_table(entries))


@app.command("show")
def show_command(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The first characters of a key that `ls` lists.")
    ],
    *,
    database: DatabaseOption = None,
    every: AllOption = False,
    json: JsonOption = False,
) -> None:
    """Show one key: its circumstances, its cost, its samples."""
    from intarsia.cost.selection import find_entry, read_machines

    with _open(database) as costs:
        entry = find_entry(costs, key)
        machine = read_machines(costs).get(entry.key.machine, "")
    if json:
        show_json(
            {
                **_summary(entry),
                "machine_text": machine,
                "all_samples": entry.samples,
                "all_weights": entry.weights,
            }
        )
        return
    from intarsia.report.costs import entry_view

    show(entry_view(entry, machine, complete=every, most=MOST_ROWS))


@app.command("export")
def export_command(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="File to write. Default: standard output.")
    ] = Path(_STANDARD),
    *,
    database: DatabaseOption = None,
    region: RegionOption = "",
    target: TargetTextOption = "",
    backend: BackendOption = "",
    machine: MachineOption = "",
    json: JsonOption = False,
) -> None:
    """Write costs as lines of JSON; with a selection without the verdicts."""
    from intarsia.cost.exchange import export_costs
    from intarsia.cost.selection import Selection

    selection = _selection(region, target, backend, machine)
    with _open(database) as costs:
        lines = export_costs(costs, None if selection == Selection() else selection)
        if str(file) == _STANDARD:
            for line in lines:
                write(line)
        else:
            count = _write_file(file, lines)
            if json:
                show_json({"file": str(file), "lines": count})
            else:
                note(f"wrote {file} ({count} lines)")


@app.command("import")
def import_command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="What `export` wrote; - is standard input."),
    ],
    *,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Bring exported costs in. Those that are there already change nothing."""
    from intarsia.cost.exchange import import_costs

    texts = {str(file): _read_lines(file) for file in files}  # before anything is made
    with _open(database, create=True) as costs:
        added = {name: import_costs(costs, lines, name) for name, lines in texts.items()}
    _show_added(added, as_json=json)


@app.command("merge")
def merge_command(
    others: Annotated[
        list[str], typer.Argument(metavar="FILE|URL...", help="Databases to merge in.")
    ],
    *,
    database: DatabaseOption = None,
    json: JsonOption = False,
) -> None:
    """Bring all in that other databases hold. They are only read."""
    from intarsia.cost.exchange import merge_costs

    with ExitStack() as opened:  # all of them, before anything is made
        sources = [opened.enter_context(_open(url)) for url in others]
        costs = opened.enter_context(_open(database, create=True))
        added = {other.store.name: merge_costs(costs, other) for other in sources}
    _show_added(added, as_json=json)


@app.command("diff")
def diff_command(
    first: Annotated[str, typer.Argument(metavar="FIRST", help="A database: a file or a URL.")],
    second: Annotated[
        str | None,
        typer.Argument(metavar="[SECOND]", help="Another database. Default: INTARSIA_COSTS."),
    ] = None,
    *,
    every: AllOption = False,
    plot: PlotOption = None,
    json: JsonOption = False,
) -> None:
    """Compare two databases; exit code 1 if a cost differs by more than its interval."""
    from intarsia.cost.compare import CHANGED, diff_costs

    if plot is not None:
        writable_plot(plot)
    with _open(first) as left, _open(second) as right:
        differences = diff_costs(left, right)
    if plot is not None:
        from intarsia.report.plots import plot_differences

        note(f"wrote {plot}: {plot_differences(differences, plot)}")
    if json:
        show_json(
            [
                {
                    **_facts(difference.key),
                    "change": difference.change,
                    "first_seconds": difference.left_seconds,
                    "second_seconds": difference.right_seconds,
                    "ratio": difference.ratio,
                    "first_nbytes": difference.left_nbytes,
                    "second_nbytes": difference.right_nbytes,
                }
                for difference in differences
            ]
        )
    else:
        from intarsia.report.costs import differences_view

        show(differences_view(differences, complete=every))
    if any(difference.change in CHANGED for difference in differences):
        raise typer.Exit(1)


@app.command("prune")
def prune_command(  # noqa: PLR0913 - an option each
    *,
    database: DatabaseOption = None,
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Only this key.")] = "",
    region: RegionOption = "",
    target: TargetTextOption = "",
    backend: BackendOption = "",
    machine: MachineOption = "",
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", metavar="90d", help="Only samples older than this (m, h, d or w)."
        ),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=0, help="Keep the newest N samples.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove costs: by age, by number, or by what they are of."""
    from dataclasses import astuple, replace

    from intarsia.cost.selection import prune_costs

    selection = replace(_selection(region, target, backend, machine), key=key)
    before = None if older_than is None else time.time() - _age_seconds(older_than)
    with _open(database) as costs:
        pruned = prune_costs(costs, selection, before=before, keep=keep, dry_run=True)
        is_any = any(astuple(pruned))
        if is_any and not dry_run:
            if not yes:
                question = f"remove {_counts(pruned)} from {costs.store.name}?"
                typer.confirm(question, abort=True, err=True)
            pruned = prune_costs(costs, selection, before=before, keep=keep)
    if json:
        show_json({"removed": pruned, "dry_run": dry_run})
    else:
        write(f"{_counts(pruned)} {'would be removed' if dry_run else 'removed'}\n")


def _open(url: str | None, *, create: bool = False) -> CostDatabase:
    from intarsia.cost.database import CostDatabase

    return CostDatabase.open(url, settings=Settings.from_environment(), create=create)


def _show_added(added: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json({"added": added})
        return
    for name, counts in added.items():
        write(f"{name}: {_counts(counts)} added\n")


def _selection(region: str, target: str, backend: str, machine: str) -> Selection:
    from intarsia.cost.selection import Selection

    if machine == "here":
        from intarsia.cost.fingerprint import this_machine

        machine = this_machine().digest
    return Selection(region=region, target=target, backend=backend, machine=machine)


def _facts(key: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {"key": key.digest, **asdict(key)}


def _summary(entry: CostEntry) -> dict[str, Any]:
    seconds, low, high = entry.seconds or (None, None, None)
    return {
        **_facts(entry.key),
        "samples": len(entry.samples),
        "seconds": seconds,
        "low_seconds": low,
        "high_seconds": high,
        "nbytes": entry.nbytes,
        "source": None if entry.cost is None else entry.cost.source,
        "poison": entry.poison,
        "last_at": entry.last_at,
    }


def _counts(counts: Any) -> str:
    names = ("keys", "samples", "poisons", "verdicts", "weights")
    words = ("key", "sample", "failure", "verdict", "weight")
    numbers = [getattr(counts, name) for name in names]
    return ", ".join(
        f"{number} {word if number == 1 else word + 's'}"
        for number, word in zip(numbers, words, strict=True)
        if number or word != "weight"
    )


def _age_seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip())
    if match is None:
        raise SettingError(
            f"--older-than {text!r} is not an age", hint="write for example 90d or 12h"
        )
    return float(match[1]) * _UNITS[match[2]]


def _read_lines(file: Path) -> list[str]:
    try:
        if str(file) == _STANDARD:
            return sys.stdin.read().splitlines()
        return file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CostDatabaseError(
            f"{str(file)!r} is not from `intarsia costs export`: it is not text",
            hint="a database of SQLite is brought in with `intarsia costs merge`",
        ) from error
    except OSError as error:
        raise SettingError(f"cannot read {str(file)!r}: {error.strerror or error}") from error


def _write_file(file: Path, lines: Iterable[str]) -> int:
    count = 0
    try:
        with whole_file(file) as draft, draft.open("w", encoding="utf-8") as stream:
            for line in lines:
                stream.write(line)
                count += 1
    except OSError as error:
        raise SettingError(
            f"cannot write {str(file)!r}: {error.strerror or error}", hint=writing_hint(error)
        ) from error
    return count


cache_app = typer.Typer(no_args_is_help=True, help="Show or empty the folder of all caches.")


@cache_app.command("info")
def cache_info_command(json: JsonOption = False) -> None:
    """Show where the caches are and what is in them."""
    from intarsia.cache import cache_info

    info = cache_info(Settings.from_environment().cache_folder())
    if json:
        show_json({**_folder_facts(info), "kinds": info.kinds})
        return
    from intarsia.report.tables import make_table

    if not info.exists:
        write(f"{info.folder} is not there yet: nothing is cached\n")
        return
    state = f"; cannot be written: {info.obstacle}" if info.obstacle else ""
    write(f"{info.folder}: {info.entries} entries, {size_text(info.nbytes)}{state}\n")
    if info.kinds:
        rows = ((kind.kind, kind.entries, size_text(kind.nbytes)) for kind in info.kinds)
        show(make_table("", ("kind", "entries>", "size>"), rows))


@cache_app.command("clear")
def cache_clear_command(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove every cached entry; the folder stays."""
    from intarsia.cache import cache_info, clear_cache

    folder = Settings.from_environment().cache_folder()
    info = cache_info(folder)
    if info.entries and not yes:
        question = f"remove {info.entries} entries ({size_text(info.nbytes)}) from {folder}?"
        typer.confirm(question, abort=True, err=True)
    removed = clear_cache(folder)
    if json:
        show_json(_folder_facts(removed))
    else:
        size = size_text(removed.nbytes)
        write(f"removed {removed.entries} entries ({size}) from {removed.folder}\n")


def _folder_facts(info: CacheInfo) -> dict[str, object]:
    return {
        "folder": info.folder,
        "exists": info.exists,
        "is_ours": info.is_ours,
        "is_writable": info.is_writable,
        "obstacle": info.obstacle,
        "entries": info.entries,
        "nbytes": info.nbytes,
    }
