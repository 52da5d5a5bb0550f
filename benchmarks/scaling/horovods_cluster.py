"""The cluster for which Horovod published how it scales."""

from __future__ import annotations

import dataclasses

from benchmarks.scaling.fit import Machine
from benchmarks.scaling.prediction import Cluster

__all__ = ["HOROVODS_EFFICIENCIES", "PER_HOST", "horovods_cluster"]

# 128 servers with 4 P100 each and 25 Gbit/s. The efficiencies, on 512 ranks, are those
# of its README and of arXiv:1802.05799.
PER_HOST = 4
_LINK = 25e9 / 8
HOROVODS_EFFICIENCIES = {"ResNet101": 0.90, "InceptionV3": 0.90, "VGG16": 0.68}
# Assumed: a message between two machines takes this much longer than between two
# namespaces, and PCIe 3.0 x16 copies so fast.
_EXTRA_TRIP_S = 10e-6
_PCIE = 10e9


def horovods_cluster(machine: Machine) -> Cluster:
    """Such a cluster of machines like `machine`."""
    real = dataclasses.replace(machine, trip_s=machine.trip_s + _EXTRA_TRIP_S)
    return Cluster(real, PER_HOST, _LINK, _PCIE)
