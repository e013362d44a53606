"""Settings of continual learning, and the rules between them and the main pipeline."""

from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from stages.lib.settings import Name, Section, Seed, is_on, not_among

Order = Annotated[list[Name], Field(min_length=2)]


class SequenceParams(Section):
    methods: list[Literal["naive", "grafting", "replay", "ewc"]] = Field(description="ways to learn task after task")
    orders: list[Name] = Field(description="which of the sequences named in `order`")
    seeds: list[Seed] = Field(description="which of `seeds`")
    max_steps: int | None = Field(ge=1, description="hard cap on the steps of each task; null for none")
    test_max: int = Field(ge=0, description="rows of every test set that are used; 0 for all")


class NoParams(Section):
    """A method that needs nothing else."""


class ReplayParams(Section):
    examples: int = Field(ge=1, description="training examples per class that are stored of every task")
    every: int = Field(ge=1, description="batches of the new task between two of stored examples")


class EwcParams(Section):
    strength: float = Field(ge=0, le=1e12, description="weight of the penalty")
    fisher: Literal["empirical", "expected"] = Field(description="squared gradients: for the label, or all labels")
    examples: int = Field(ge=1, description="training examples that the Fisher information is a mean over")


class MethodParams(Section):
    naive: NoParams
    grafting: NoParams
    replay: ReplayParams
    ewc: EwcParams


SECTIONS: dict[str, Any] = {"sequence": SequenceParams, "order": dict[Name, Order], "method": MethodParams}


def order_tasks(values: dict[str, Any]) -> float:
    """Tasks of a sequence, a mean over the orders that are learned."""
    chosen = [name for name in values["sequence"].orders if name in values["order"]]
    return fmean(len(values["order"][name]) for name in chosen) if chosen else 0


# what the costs of stages grow with, besides single settings
COST_FACTORS = {"order_tasks": order_tasks}


def problems(values: dict[str, Any]) -> list[str]:
    """Orders are found by their names and hold tasks of the main pipeline, each once.  Without sequences no rules."""
    if not is_on(values, "sequence"):
        return []
    found = [
        *not_among(values, "sequence.orders", "order"),
        *not_among(values, "sequence.seeds", "seeds"),
    ]
    for name in (name for name in values["sequence"].orders if name in values.get("order", {})):
        found += _order_problems(name, values)
    return found


def _order_problems(name: str, values: dict[str, Any]) -> list[str]:
    if "." in name:
        return [f"order: {name!r} has a dot in it, which stands between a section and its settings; use _ instead"]
    order = values["order"][name]
    twice = [f"order.{name}: {task} stands twice" for task in dict.fromkeys(order) if order.count(task) > 1]
    return twice + not_among(values, f"order.{name}", "tasks")
