"""A certificate authority for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lithify.raft.net.transport import Tls

if TYPE_CHECKING:
    from pathlib import Path


class Authority:
    """Signs certificates."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._sign(self._name, self._key.public_key(), ca=True))

    def tls(self, name: str, *, age_days: int = 1) -> Tls:
        """A certificate that is valid for two days, and this many old."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._directory / f"{name}-{age_days}-{self.file.stem}.crt"
        signed = self._sign(subject, key.public_key(), ca=False, age_days=age_days)
        certificate.write_bytes(signed)
        key_file = certificate.with_suffix(".key")
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return Tls(str(self.file), str(certificate), str(key_file))

    def _sign(self, subject: x509.Name, key: Any, *, ca: bool, age_days: int = 1) -> bytes:
        begin = datetime.now(UTC) - timedelta(days=age_days)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
