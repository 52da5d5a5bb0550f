"""`ring benchmark`, on every rank, by the module's name."""

import sys

from ring_keras.benchmark.run import main

sys.exit(main())
