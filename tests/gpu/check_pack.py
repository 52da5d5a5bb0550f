"""Every case of the device code on GPU 0; a program, for compute-sanitizer."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.pack_cases import CASES

from ring_keras import _native


def main() -> None:
    _native.set_cuda_library_path(os.environ.get("RING_KERAS_CUDA_LIBRARY_PATH", ""))
    _native.prepare_device(0)
    for name, check in CASES:
        print(name, flush=True)
        check()
    print(f"{len(CASES)} cases passed.")


if __name__ == "__main__":
    main()
