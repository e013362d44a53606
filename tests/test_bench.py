"""The bench runs on the code as it is: every row of its table is measured, here on a model that is far too small to be timed."""

from math import isfinite
from types import SimpleNamespace

import pytest

from skill_grafting import runtime
from tests import bench


@pytest.mark.parametrize("name", bench.TABLE)
def test_every_row_of_the_table_is_measured(monkeypatch, name):
    monkeypatch.setattr(bench, "SIZES", {"cpu": (32, 1, 4)})
    for constant in ("ROUNDS", "STEPS", "BATCH"):
        monkeypatch.setattr(bench, constant, 1)
    small = {"device": "cpu", "precision": "float32", "threads": 1, "gradient_checkpointing": False}
    rows = [*bench.TABLE[name](runtime.start(SimpleNamespace(**small, batch_tokens=2048)))]
    assert len({what for what, _, _ in rows}) == len(rows) > 5
    assert all(isfinite(value) and value >= 0 for _, value, _ in rows)
