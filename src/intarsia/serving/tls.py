# SPDX-License-Identifier: Apache-2.0
"""The certificate of a server, for HTTP and gRPC."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from intarsia.errors import SettingError


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """A certificate with its key, which belong together.

    Attributes:
        context: What speaks TLS with them: version 1.2 and above.
        chain: The certificate, and those that vouch for it, as PEM.
        key: Its private key, as PEM.
    """

    context: ssl.SSLContext
    chain: bytes
    key: bytes = field(repr=False)


def load_certificate(chain: Path, key: Path) -> ServerCertificate:
    """Read a certificate and its key.

    Args:
        chain: The certificate's file: PEM, the server's own first.
        key: The file of its private key: PEM, without a passphrase.

    Raises:
        SettingError: One cannot be read, is none, or they do not belong together.
    """
    texts = tuple(map(_read, (chain, key)))
    is_asked = False

    def passphrase() -> str:  # OpenSSL would ask for it on the terminal
        nonlocal is_asked
        is_asked = True
        return ""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(chain, key, passphrase)
    except (ssl.SSLError, ValueError) as error:
        raise _refusal(chain, key, error, is_encrypted=is_asked) from None
    return ServerCertificate(context, *texts)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingError(
            f"{str(file)!r} cannot be read: {error.strerror or error}",
            hint="--tls-cert and --tls-key are files in PEM",
        ) from None


def _refusal(chain: Path, key: Path, error: Exception, *, is_encrypted: bool) -> SettingError:
    """Return what is wrong with a certificate or its key."""
    if is_encrypted:
        return SettingError(
            f"the key {str(key)!r} has a passphrase",
            hint=f"write it without one: openssl pkey -in {key} -out KEY",
        )
    if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
        return SettingError(
            f"the key {str(key)!r} is not that of the certificate {str(chain)!r}",
            hint="of several certificates in the file, the server's own comes first",
        )
    try:  # of the two, which one is it?
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(chain)
    except ssl.SSLError:
        return SettingError(f"{str(chain)!r} is no certificate in PEM", hint="give it as PEM")
    return SettingError(f"{str(key)!r} is no private key in PEM", hint="give it as PEM")
