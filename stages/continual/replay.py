"""Experience replay: a few examples of every earlier task are stored, and come again among those of a new one."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

Batch = TypeVar("Batch")
Row = dict[str, str | None]


def stored_rows(rows: Sequence[Row], labels: Sequence[str], per_class: int) -> list[Row]:
    """The first rows of every class, in their order, all of a class that has fewer.

    A sample comes in a random order already (data/sampling.py), so these are a random draw.
    """
    chosen = []
    for label in labels:
        chosen += islice((number for number, row in enumerate(rows) if row["label"] == label), per_class)
    return [rows[number] for number in sorted(chosen)]


def mixed(new: Iterator[Batch], stored: Sequence[Iterator[Batch]], every: int) -> Iterator[Batch]:
    """After every so many batches of the new task one of stored examples, from the earlier tasks in turn.

    The new task's batches come in their own order and none is left out.
    """
    turn = 0
    while True:
        yield from islice(new, every)
        if stored:
            yield next(stored[turn % len(stored)])
            turn += 1


def steps_with_replay(steps: int, every: int, earlier: int) -> int:
    """Steps it takes until `steps` batches of the new task have come, with those of stored examples among them."""
    return steps + (steps // every if earlier else 0)
