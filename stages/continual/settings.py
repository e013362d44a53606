"""Settings of continual learning, and the rules between them and the main pipeline."""

from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import Field

from stages.lib.settings import Choice, Name, Section, is_on, not_among, told

Order = Annotated[list[Name] | None, Field(description="null for all of `tasks` as they stand there")]


class SequenceParams(Section):
    methods: list[Literal["naive", "grafting", "replay", "ewc"]] = Field(description="ways to learn task after task")
    orders: list[Name] = Field(description="which of the sequences named in `order`")
    max_steps: int | None = Field(ge=1, description="hard cap on the steps of each task; null for none")
    rate_factors: list[Annotated[float, Field(gt=0, le=1e6)]] = Field(
        min_length=1,
        description="learning rates, as multiples of that of the task's own fine-tuning; dev chooses one for each task",
    )
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


TASKS = (Choice("order", least=2),)


def order_tasks(values: dict[str, Any]) -> float:
    """Tasks of a sequence, a mean over the orders that are learned."""
    chosen = [len(values["order"][name]) for name in values["sequence"].orders if name in values["order"]]
    return fmean(chosen) if chosen else 0


# what the costs of stages grow with, besides single settings
COST_FACTORS = {"order_tasks": order_tasks}


def problems(values: dict[str, Any]) -> list[str]:
    """Orders are found by their names.  Without sequences no rules."""
    if not is_on(values, "sequence"):
        return []
    dotted = [name for name in values["sequence"].orders if "." in name]
    return told([not_among], values, "sequence.orders", "order") + [
        f"order: {name!r} has a dot in it, which stands between a section and its settings; use _ instead"
        for name in dotted
    ]
