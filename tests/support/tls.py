"""Servers behind TLS, and certificates for them."""

from __future__ import annotations

import datetime
import ipaddress
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from holdfast.errors import NodeError
from holdfast.server import Server, ServerBinary, find_servers, free_port

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Certificates:
    """PEM files: the authority, and a certificate for 127.0.0.1 and localhost with its key."""

    ca: Path
    cert: Path
    key: Path


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer_name, issuer_key = issuer or (subject, key)
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=issuer is None,
                crl_sign=issuer is None,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if issuer is not None:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
        usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def make_certificates(directory: Path) -> Certificates:
    """Write an authority and a certificate signed by it, good for a day, into `directory`."""
    files = Certificates(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("holdfast test authority", authority_key, None)
    leaf = _certificate("localhost", key, (authority.subject, authority_key))
    files.ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files.cert.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


class TlsServer(Server):
    """A server whose only TCP port speaks TLS; `url` is "rediss://127.0.0.1:PORT/0"."""

    @property
    def url(self) -> str:
        """Its address over TLS."""
        return f"rediss://{HOST}:{self.port}/0"


def tls_server(
    binary: ServerBinary,
    certs: Certificates,
    *,
    client_certs: bool = False,
    args: Sequence[str] = (),
) -> TlsServer:
    """A TLS server, not yet started. With `client_certs`, clients must show a certificate too."""
    port = free_port()
    options = {
        "--port": "0",
        "--tls-port": str(port),
        "--tls-cert-file": str(certs.cert),
        "--tls-key-file": str(certs.key),
        "--tls-ca-cert-file": str(certs.ca),
        "--tls-auth-clients": "yes" if client_certs else "no",
    }
    words = [word for option in options.items() for word in option]
    return TlsServer(binary, port=port, args=(*words, *args))


@cache
def tls_binary() -> ServerBinary | None:
    """The newest server here that was built with TLS, found by trying; None if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        certs = make_certificates(Path(folder))
        for binary in find_servers():
            try:
                with tls_server(binary, certs):
                    return binary
            except NodeError:
                continue
    return None
