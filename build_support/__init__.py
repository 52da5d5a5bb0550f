"""What setup.py and CMake need to build the package; never installed."""
