"""`forbid_prctl.py OPTION COMMAND...` runs a command that may not call prctl(OPTION).

As a sandbox's filter of system calls has it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

_PRCTL = {"x86_64": 157, "aarch64": 167}
_PR_SET_SECCOMP, _FILTER = 22, 2
_PR_SET_NO_NEW_PRIVS = 38
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _FIRST_ARGUMENT = 0, 16  # Where the kernel puts them.
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def main() -> None:
    """Replaces this process by the command."""
    steps = [
        (_LOAD, 0, 0, _NUMBER),
        (_IF_EQUAL, 0, 3, _PRCTL[platform.machine()]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_IF_EQUAL, 0, 1, int(sys.argv[1])),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(steps), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0
    ):
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
