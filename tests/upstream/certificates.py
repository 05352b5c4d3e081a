"""An authority of the tests' own, and certificates that it signs; made by openssl."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

from msgspec import Struct


class Pair(Struct, frozen=True):
    """A certificate and its key, as files in PEM."""

    cert: str
    key: str


class Authority:
    """Signs certificates below a folder; `ca` is the file that whoever trusts it needs."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self.ca = str(folder / f"{name}.pem")
        self._key = str(folder / f"{name}.key")
        _openssl(
            "req", "-x509", *_CURVE, "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-keyout", self._key, "-out", self.ca,
        )  # fmt: skip

    def sign(
        self,
        name: str,
        *,
        days: int = 30,
        names: str = "IP:127.0.0.1,DNS:localhost",
        subject: str = "",
    ) -> Pair:
        """Give a certificate that holds from now on for so many days; -1: it ended yesterday.

        Its `subject` is its name as a CommonName, where nothing else is said.
        """
        stem = self._folder / name
        pair = Pair(cert=f"{stem}.pem", key=f"{stem}.key")
        asked = f"{stem}.csr"
        _openssl(
            "req", "-new", *_CURVE, "-nodes", "-subj", subject or f"/CN={name}",
            "-addext", f"subjectAltName={names}", "-keyout", pair.key, "-out", asked,
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", asked, "-CA", self.ca, "-CAkey", self._key,
            "-days", str(days), "-copy_extensions", "copy", "-out", pair.cert,
        )  # fmt: skip
        return pair


_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


def server(pair: Pair, *, clients: str = "") -> ssl.SSLContext:
    """Give a server's context; with `clients`, whoever comes must have a certificate of that."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    if clients:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
