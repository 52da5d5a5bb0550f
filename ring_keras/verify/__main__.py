"""`python -m ring_keras.verify`, on every rank."""

import sys

from ring_keras.verify.command import main

sys.exit(main())
