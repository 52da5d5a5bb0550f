"""Whether what travels between hosts can be encrypted, if that is wanted."""

from __future__ import annotations

from ring_keras.launch.connection import tls_buffer
from ring_keras.launch.doctor.finding import Finding, State
from ring_keras.launch.doctor.host.fixes import as_root
from ring_keras.launch.doctor.host.settings import config
from ring_keras.launch.doctor.job_shape import JobShape
from ring_keras.launch.frames import ProtocolError

__all__ = ["check"]

_KEY_NBYTES = 32


def check(job: JobShape) -> list[Finding]:
    """Opens the machine's OpenSSL, as a rank would."""
    if not config().encrypt:
        text = "not asked for (--encrypt)"
        return [Finding("encryption", State.NOT_APPLICABLE, text)]
    try:
        tls_buffer(server=True, key=bytes(_KEY_NBYTES))
    except ProtocolError as error:
        return [
            Finding(
                "encryption",
                State.FAILURE,
                str(error),
                expected="OpenSSL 3, which does it",
                fix=as_root("apt-get install libssl3"),
            )
        ]
    return [Finding("encryption", State.OK, "OpenSSL is there")]
