# SPDX-License-Identifier: Apache-2.0
"""Keys: they tell what was written here, or by somebody whom the user trusts, from all else.

What this installation writes carries a tag by a secret key of its own (HMAC-SHA256), which is made
when it is first needed; it proves something to this installation alone. For others it is signed
(Ed25519, by the package `cryptography`). All keys lie in one folder that nobody else may write.

Light: whoever has no signature to check imports no cryptography.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from intarsia.errors import SettingError
from intarsia.files import whole_file, writing_hint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


logger = logging.getLogger("intarsia")

HERE = "this installation"
"""Who vouches for what was written here."""

_INSTALLATION, _SIGNING, _TRUSTED = "installation.key", "signing.key", "trusted_keys"
_KEY_BYTES = 32
_DOMAIN = b"intarsia package\0"
"""Begins what is signed, so that a signature of something else never serves."""
_NAME = re.compile(r"[\w.@+-]+", re.ASCII)
_PREFIX = "ed25519:"


class Signature(msgspec.Struct, frozen=True):
    """By the owner of a key: its public half and the signature, both as text."""

    key: str
    signature: str


class Seal(msgspec.Struct, frozen=True):
    """What vouches for some content.

    Attributes:
        here: Tag of the installation that wrote it; empty: it has no key.
        signatures: Of others, and of its user.
    """

    here: str = ""
    signatures: tuple[Signature, ...] = ()


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys in a folder.

    Attributes:
        folder: Which need not be there.
    """

    folder: Path

    def seal(self, content: bytes, signatures: tuple[Signature, ...] = ()) -> Seal:
        """Return what vouches for content that is written here.

        Where the folder cannot be written there is no key; then it says so once, and what is
        written is as if somebody else had written it.

        Args:
            content: What is written.
            signatures: That it has already.
        """
        try:
            key = self._installation_key()
        except OSError as error:
            _say_once(
                f"packages that are written here will not be known as such, as there is no key: "
                f"{self.folder}: {error.strerror or error}; INTARSIA_KEYS_DIR names another folder"
            )
            return Seal("", signatures)
        return Seal("" if key is None else _tag(key, content), signatures)

    def signer(self, content: bytes, seal: Seal) -> str:
        """Return who vouches for content: `HERE`, or the name of a trusted key; else empty text."""
        key = self._read(_INSTALLATION)
        if key is not None and hmac.compare_digest(_tag(key, content).encode(), seal.here.encode()):
            return HERE
        trusted = self.trusted() if seal.signatures else {}
        for name, public in trusted.items():
            for one in seal.signatures:
                if one.key == public and _verifies(one, content):
                    return f"key {name!r}"
        return ""

    def sign(self, content: bytes) -> Signature:
        """Sign content by the user's own key.

        Raises:
            SettingError: There is none, or `cryptography` is missing.
        """
        private = self._signing_key()
        return Signature(_public_text(private), _text(private.sign(_message(content))))

    def make(self) -> str:
        """Make the user's own key and return its public half.

        Raises:
            SettingError: There is one already, or it cannot be written.
        """
        _ed25519()
        try:
            _create(self.folder / _SIGNING, secrets.token_bytes(_KEY_BYTES))
        except FileExistsError:
            raise SettingError(
                f"there is a key already: {self.folder / _SIGNING}",
                hint="`intarsia keys show` prints its public half",
            ) from None
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        return self.public()

    def public(self) -> str:
        """Return the public half of the user's own key.

        Raises:
            SettingError: There is none, or `cryptography` is missing.
        """
        return _public_text(self._signing_key())

    def trusted(self) -> dict[str, str]:
        """Return the public keys that the user trusts, by name."""
        content = self._content(_TRUSTED)
        lines = "" if content is None else content.decode("ascii", "replace")
        pairs = (line.split() for line in lines.splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}  # noqa: PLR2004 - a name and a key

    def trust(self, name: str, public: str) -> None:
        """Trust what the owner of a key signs.

        Args:
            name: What the key is to be called; a name that is there gets another key.
            public: As `make` and `public` return it.

        Raises:
            SettingError: It is not a key, or the name not one, or it cannot be written.
        """
        if _NAME.fullmatch(name) is None:
            raise SettingError(f"{name!r} is not a name of a key", hint="use letters and digits")
        if len(_bytes(public.removeprefix(_PREFIX))) != _KEY_BYTES or not public.startswith(
            _PREFIX
        ):
            raise SettingError(
                f"{public!r} is not a public key",
                hint="`intarsia keys show` prints one where it was made: ed25519:...",
            )
        self._write_trusted({**self.trusted(), name: public})

    def distrust(self, name: str) -> None:
        """Trust a key no longer.

        Raises:
            SettingError: There is none of this name, or it cannot be written.
        """
        known = self.trusted()
        if name not in known:
            raise SettingError(
                f"there is no trusted key {name!r}", hint=f"there are: {', '.join(known) or 'none'}"
            )
        self._write_trusted({other: key for other, key in known.items() if other != name})

    def _write_trusted(self, keys: dict[str, str]) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with whole_file(self.folder / _TRUSTED) as draft:
                draft.touch(mode=0o600)
                draft.write_text("".join(f"{name} {key}\n" for name, key in keys.items()))
        except OSError as error:
            raise _unwritable(self.folder, error) from error

    def _installation_key(self) -> bytes | None:
        """Return the key of this installation, which is made if need be; None if it is not secret.

        Raises:
            OSError: It cannot be written.
        """
        path = self.folder / _INSTALLATION
        if not path.exists():
            with suppress(FileExistsError):  # another process was quicker
                _create(path, secrets.token_bytes(_KEY_BYTES))
        return self._read(_INSTALLATION)

    def _signing_key(self) -> Ed25519PrivateKey:
        ed25519 = _ed25519()
        key = self._read(_SIGNING)
        if key is None:
            raise SettingError(
                f"there is no key to sign with in {self.folder}", hint="`intarsia keys make`"
            )
        private: Ed25519PrivateKey = ed25519.Ed25519PrivateKey.from_private_bytes(key)
        return private

    def _read(self, name: str) -> bytes | None:
        content = self._content(name)
        if content is None or len(content) != 2 * _KEY_BYTES:
            return None
        try:
            return bytes.fromhex(content.decode("ascii"))
        except ValueError:
            return None

    def _content(self, name: str) -> bytes | None:
        """Return a file of the folder; None if it is not there, or not the user's alone."""
        path = self.folder / name
        try:
            with path.open("rb") as file:
                if not (_is_private(self.folder, 0o022) and _is_private(file, 0o077)):
                    _say_once(
                        f"{path} is not used: others may read or write it, or it is somebody "
                        f"else's; `chmod 700 {self.folder}; chmod 600 {path}`"
                    )
                    return None
                return file.read()
        except OSError:
            return None


def _is_private(opened: IO[bytes] | Path, others: int) -> bool:
    """Tell whether something is the user's, and others have none of these permissions."""
    status = opened.stat() if isinstance(opened, Path) else os.fstat(opened.fileno())
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & others


def _create(path: Path, key: bytes) -> None:
    """Write a new file that its owner alone may read; it appears whole.

    Raises:
        OSError: It is there, or cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    try:
        with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:  # noqa: PTH123 - the mode is to be this one from the start
            file.write(key.hex().encode())
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _tag(key: bytes, content: bytes) -> str:
    return hmac.digest(key, _message(content), "sha256").hex()


def _message(content: bytes) -> bytes:
    return _DOMAIN + hashlib.sha256(content).digest()


def _verifies(one: Signature, content: bytes) -> bool:
    try:
        ed25519 = _ed25519()
    except SettingError as error:
        _say_once(f"signatures are not checked: {error}")
        return False
    from cryptography.exceptions import InvalidSignature

    try:
        public = ed25519.Ed25519PublicKey.from_public_bytes(_bytes(one.key.removeprefix(_PREFIX)))
        public.verify(_bytes(one.signature), _message(content))
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> Any:
    """Return the module of these keys.

    Raises:
        SettingError: It is not installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise SettingError(
            "keys need the package cryptography", hint="pip install 'intarsia[sign]'"
        ) from error
    return ed25519


def _public_text(private: Ed25519PrivateKey) -> str:
    return _PREFIX + _text(private.public_key().public_bytes_raw())


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return b""


def _unwritable(folder: Path, error: OSError) -> SettingError:
    return SettingError(
        f"keys cannot be kept in {folder}: {error.strerror or error}",
        hint=writing_hint(error, "set INTARSIA_KEYS_DIR to a folder of yours"),
    )


_said: set[str] = set()
"""What this process has warned of."""


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        logger.warning("%s", message)
