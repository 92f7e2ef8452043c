# SPDX-License-Identifier: Apache-2.0
"""`intarsia keys ...`: the user's own key, the keys that are trusted, and signing packages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intarsia.cli.options import JsonOption
from intarsia.cli.output import show_json, write
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.keys import Keys

app = typer.Typer(
    help="Keys that vouch for packages: your own, and those of others.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What the key is called here.")]


def _keys() -> Keys:
    from intarsia.keys import Keys  # every command would wait for it

    return Keys(Settings.from_environment().keys_folder())


@app.command("make")
def make_command(json: JsonOption = False) -> None:
    """Make a key of your own, to sign packages with, and print its public half."""
    _show_own(_keys().make(), json=json)


@app.command("show")
def show_command(json: JsonOption = False) -> None:
    """Print the public half of your own key, for those who are to trust it."""
    _show_own(_keys().public(), json=json)


def _show_own(public: str, *, json: bool) -> None:
    if json:
        show_json({"public": public})
    else:
        write(f"{public}\n")


@app.command("list")
def list_command(json: JsonOption = False) -> None:
    """List the keys whose packages run here."""
    trusted = _keys().trusted()
    if json:
        show_json({"trusted": trusted})
        return
    for name, public in trusted.items():
        write(f"{name} {public}\n")


@app.command("trust")
def trust_command(
    name: NameArgument,
    public: Annotated[
        str, typer.Argument(metavar="KEY", help="As `intarsia keys show` prints it.")
    ],
    json: JsonOption = False,
) -> None:
    """Trust a key: code in packages that it signed runs here."""
    _keys().trust(name, public)
    if json:
        show_json({"trusted": _keys().trusted()})
    else:
        write(f"packages that {name} signs run their own code here\n")


@app.command("distrust")
def distrust_command(name: NameArgument, json: JsonOption = False) -> None:
    """Trust a key no longer."""
    _keys().distrust(name)
    if json:
        show_json({"trusted": _keys().trusted()})
    else:
        write(f"packages that {name} signs do not run their own code here any more\n")


@app.command("sign")
def sign_command(
    file: Annotated[
        Path, typer.Argument(metavar="PACKAGE", help="The package, which is rewritten.")
    ],
    json: JsonOption = False,
) -> None:
    """Sign a package with your own key; whoever trusts the key runs its code."""
    from intarsia.runtime.package import sign_package

    public = _keys().public()
    sign_package(file, _keys())
    if json:
        show_json({"file": str(file), "public": public})
    else:
        write(f"signed {file} with {public}\n")
