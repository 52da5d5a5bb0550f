"""Drawn training programs: N ranks train as one process does, or say why not.

`make fuzz-fits` draws others, and more; `support.fits` explains them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fits.campaign import Campaign
from support.fits.program import CHOICES, Program, draw, made_possible, simpler
from support.fits.source import source

# Various, and quick: of 2 and 3 ranks on one host, so that few processes are started.
SEEDS = [72]
# The first ones of such ranks, whatever they take, and two more that are quick.
FIRST = [
    *(
        seed
        for seed in range(36)
        if draw(seed).size < 4 and draw(seed).transport == "shm" and seed not in SEEDS
    ),
    *(58, 86),
]


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    with Campaign() as campaign:
        yield campaign


@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    "seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in FIRST)]
)
def test_a_drawn_program_is_equal_or_refused(campaign: Campaign, seed: int) -> None:
    program = draw(seed)

    verdict = campaign.run(program)

    assert verdict.kind in ("equal", "refused"), (
        f"{program}\n{verdict.kind}: {verdict.text}\n{source(program)}"
    )


# What drawn programs have found, shrunk.
FOUND = [
    # The last step of a rank without data met the others in another order.
    Program(
        seed=31222,
        model="subclassed",
        batch_norm=True,
        step="two critic steps",
        task="binary",
        accumulation=3,
        data="generator",
        lengths="other",
        remainder="join",
        batches=7,
        jit=True,
        execution=2,
    ),
    # After an epoch of no whole updates, ranks met a batch after each update.
    Program(seed=70198, accumulation=3, updates="DiLoCo", epochs=2),
    # What was made in a step that XLA compiles waited for its gradients.
    Program(
        seed=70184,
        model="subclassed",
        step="two optimizers",
        updates="sharded",
        jit=True,
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(360)
@pytest.mark.parametrize("program", FOUND, ids=lambda program: program.seed)
def test_what_was_found_once(campaign: Campaign, program: Program) -> None:
    verdict = campaign.run(program)

    assert verdict.kind == "equal", f"{verdict.kind}: {verdict.text}\n{source(program)}"


@pytest.mark.slow
def test_every_choice_is_drawn_and_every_program_is_python() -> None:
    drawn: dict[str, set[object]] = {name: set() for name in CHOICES}
    for seed in range(1500):
        program = draw(seed)
        compile(source(program), f"program {seed}", "exec")
        for name, choices in drawn.items():
            choices.add(getattr(program, name))

    assert drawn == {name: set(choices) for name, choices in CHOICES.items()}


def test_what_is_shrunk_is_possible_and_comes_to_an_end() -> None:
    for seed in range(40):
        program = draw(seed)
        assert made_possible(program) == program
        for _ in range(200):
            candidates = simpler(program)
            if not candidates:
                break
            program = candidates[0]
        else:
            pytest.fail(f"program {seed} has no plainest one")
