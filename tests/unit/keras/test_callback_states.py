"""What a rank that comes later takes of the others' callbacks."""

import keras
import pytest

from ring_keras.elastic.callback_states import CallbackStates


class Best(keras.callbacks.Callback):
    """Knows the lowest level of all its fits, as `ModelCheckpoint` does."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.best = None
        self.is_odd = False

    def on_epoch_end(self, epoch, logs=None):
        self.best = min(logs["level"], self.best or logs["level"])
        self.is_odd = not self.is_odd


def stopping():
    return keras.callbacks.EarlyStopping("level", 0.5, 9, mode="min")


def begin(*callbacks):
    for callback in callbacks:
        callback.on_train_begin()
    return CallbackStates(callbacks)


def end_epochs(callback, *levels):
    for epoch, level in enumerate(levels):
        callback.on_epoch_end(epoch, {"level": level})


@pytest.mark.parametrize("late_epochs", [[], [4.75]])
def test_one_that_comes_later_watches_as_the_others_do(late_epochs):
    early, late = stopping(), stopping()
    states, late_states = begin(early), begin(late)
    end_epochs(early, 5.0, 4.75)
    end_epochs(late, *late_epochs)

    late_states.take(states.values())

    for one in (early, late):
        end_epochs(one, 4.25, 4.0)
    assert (early.best, early.wait) == (late.best, late.wait) == (4.25, 1)


def test_what_another_fit_has_left_is_taken():
    early, late = Best("early"), Best("late")
    states, late_states = begin(early), begin(late)
    end_epochs(early, 3.0)
    for each in (states, late_states):
        each.note_changes()
    early.name = "of the second fit"
    states, late_states = begin(early), begin(late)

    late_states.take(states.values())

    assert late.best == 3.0
    assert late.name == "late"


def test_what_changed_on_the_way_to_the_others_is_undone():
    early, late = Best("early"), Best("late")
    states, late_states = begin(early), begin(late)
    end_epochs(early, 3.0, 2.0)
    end_epochs(late, 9.0)

    late_states.take(states.values())

    assert (late.best, late.is_odd) == (2.0, False)
