"""What is written in the background, and in which order."""

from __future__ import annotations

import threading

from ring_keras.callbacks.background_write import BackgroundWrite, wait_for_all_writes


def test_a_backup_does_not_wait_for_a_checkpoint():
    goes_on = threading.Event()
    written = []

    def write_slowly():
        assert goes_on.wait(60)
        written.append("checkpoint")

    slow, fast = BackgroundWrite("checkpoint"), BackgroundWrite("backup")
    slow.begin(write_slowly)
    fast.begin(lambda: written.append("backup"))
    fast.wait(30)
    assert written == ["backup"]

    goes_on.set()
    wait_for_all_writes()
    assert written == ["backup", "checkpoint"]
