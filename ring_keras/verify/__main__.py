"""`ring verify`, on every rank, by the module's name."""

import sys

from ring_keras.verify.command import main

sys.exit(main())
