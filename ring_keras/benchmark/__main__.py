"""`python -m ring_keras.benchmark`, on every rank."""

import sys

from ring_keras.benchmark.run import main

sys.exit(main())
