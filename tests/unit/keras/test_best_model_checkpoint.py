"""Arguments of `BestModelCheckpoint`."""

import pytest

from ring_keras.callbacks import BestModelCheckpoint


def test_a_path_in_place_of_the_metric_is_refused():
    for path in "best.keras", "best.weights.h5":
        with pytest.raises(ValueError, match=r"BestModelCheckpoint\(filepath="):
            BestModelCheckpoint(path)
    assert BestModelCheckpoint("val_mae", filepath="best.keras").monitor == "val_mae"
