"""`python -m ring_keras.launch` is `ringrun`."""

import sys

from ring_keras.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
