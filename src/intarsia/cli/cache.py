# SPDX-License-Identifier: Apache-2.0
"""`intarsia cache info|clear`: the one folder of all caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.options import JsonOption
from intarsia.cli.output import show, show_json, size_text, write
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.cache import CacheInfo

app = typer.Typer(no_args_is_help=True, help="Show or empty the folder of all caches.")


@app.command("info")
def info_command(json: JsonOption = False) -> None:
    """Show where the caches are and what is in them."""
    from intarsia.cache import cache_info

    info = cache_info(Settings.from_environment().cache_folder())
    if json:
        show_json({**_facts(info), "kinds": info.kinds})
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


@app.command("clear")
def clear_command(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Remove every cached entry; the folder stays."""
    from intarsia.cache import cache_info, clear_cache

    folder = Settings.from_environment().cache_folder()
    found = cache_info(folder)
    if found.entries and not yes:
        question = f"remove {found.entries} entries ({size_text(found.nbytes)}) from {folder}?"
        typer.confirm(question, abort=True, err=True)
    removed = clear_cache(folder)
    if json:
        show_json(_facts(removed))
    else:
        size = size_text(removed.nbytes)
        write(f"removed {removed.entries} entries ({size}) from {removed.folder}\n")


def _facts(info: CacheInfo) -> dict[str, object]:
    return {
        "folder": info.folder,
        "exists": info.exists,
        "is_ours": info.is_ours,
        "is_writable": info.is_writable,
        "obstacle": info.obstacle,
        "entries": info.entries,
        "nbytes": info.nbytes,
    }
