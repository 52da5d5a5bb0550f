"""What the first `import horovod` of a process finds under `ringrun --horovod`."""

import importlib
import sys

from ring_keras.horovod._import_hook import install

del sys.modules[__name__]
install()
# In place of this module; the import system takes what is there in the end.
sys.modules[__name__] = importlib.import_module("ring_keras.horovod")
