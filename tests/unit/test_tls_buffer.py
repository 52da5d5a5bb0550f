"""TLS as the launcher's processes speak it, against others' TLS."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from ring_keras import _native

KEY = bytes(range(32))
# Made for this test, and of no use for anything else.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgqKgErqcWsuSMrW1J
KLQ0w1mNYr5X5jb6FVgZt2+MzLqhRANCAAQMlJ/xR3nX1AE0Z+LukG9rO+bHGLgB
WdDwmQ+TpEPsyddVrUWjayGNU/ozCqA6ZHF/PPQz6MKEkOIUyzGoM6YU
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfTCCASOgAwIBAgIUdLvZ9xV87hJY/Y+E3sYc3f5+w4IwCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIc29tZWJvZHkwIBcNMjYxMTIyMTc1MzM4WhgPMjEyNjEwMjkx
NzUzMzhaMBMxETAPBgNVBAMMCHNvbWVib2R5MFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAEDJSf8Ud519QBNGfi7pBvazvmxxi4AVnQ8JkPk6RD7MnXVa1Fo2shjVP6
MwqgOmRxfzz0M+jChJDiFMsxqDOmFKNTMFEwHQYDVR0OBBYEFPtf5A4sTkgr2440
7uMnLFSxzffDMB8GA1UdIwQYMBaAFPtf5A4sTkgr24407uMnLFSxzffDMA8GA1Ud
EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgBz6aAbjm+J0nCsGMC66ub/gY
EDt0eCPeiwKRtEbHNygCIQC6UCV25Db/z6EpfFem8oTr8Euo63rVY6UwK7R39Hby
Bw==
-----END CERTIFICATE-----
"""


def test_what_is_pushed_is_taken():
    client = _native.TlsBuffer(server=False, key=KEY)
    server = _native.TlsBuffer(server=True, key=KEY)
    client.push(b"hello")
    server.push(b"welcome" * 10_000)
    taken = [b"", b""]
    for _ in range(3):
        taken[1] += server.take(client.outgoing())
        taken[0] += client.take(server.outgoing())
    assert taken == [b"welcome" * 10_000, b"hello"]


def test_a_server_with_a_certificate_and_no_key_is_refused(tmp_path: Path):
    file = tmp_path / "certificate.pem"
    file.write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    from_us, to_us = ssl.MemoryBIO(), ssl.MemoryBIO()
    stranger = context.wrap_bio(from_us, to_us, server_side=True)
    client = _native.TlsBuffer(server=False, key=KEY)
    client.push(b"my weights")
    from_us.write(client.outgoing())
    with contextlib.suppress(ssl.SSLWantReadError):
        stranger.do_handshake()
    with pytest.raises(ValueError, match="does not hold the job's secret"):
        client.take(to_us.read())


def test_a_client_without_the_key_is_refused():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    from_us, to_us = ssl.MemoryBIO(), ssl.MemoryBIO()
    stranger = context.wrap_bio(from_us, to_us)
    with contextlib.suppress(ssl.SSLWantReadError):
        stranger.do_handshake()
    server = _native.TlsBuffer(server=True, key=KEY)
    with pytest.raises(ValueError, match="does not hold the job's secret"):
        server.take(to_us.read())
