"""Damaged params files and data files, a few of those of tests/chaos: the readers succeed or say what is wrong."""

from stages.lib.errors import DataError
from tests.chaos import inputs


def test_no_reader_breaks_on_damaged_input():
    assert inputs.run(cases=25, seed=1) == [(name, 25, []) for name in inputs.CHECKS]


def test_the_same_seed_makes_the_same_cases_and_a_broken_reader_is_told_with_it(monkeypatch):
    def broken(chance, folder):
        if (number := chance.random()) < 0.5:
            raise KeyError(number)
        raise DataError("one clear line")

    monkeypatch.setattr(inputs, "CHECKS", {"broken": broken})
    [(name, cases, failures)] = inputs.run(cases=20, seed=1)
    assert (
        (name, cases) == ("broken", 20)
        and 3 < len(failures) < 17
        and "-1-" in failures[0]
        and "KeyError" in failures[0]
    )
    assert inputs.run(cases=20, seed=1) == [(name, cases, failures)] != inputs.run(cases=20, seed=2)
