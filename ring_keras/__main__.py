"""`python -m ring_keras` is `ring`."""

import sys

from ring_keras.launch.tools import main

if __name__ == "__main__":
    sys.exit(main())
