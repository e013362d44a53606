"""Settings of the surgical pipeline, and the rules between them and the main pipeline."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from skill_grafting.support.fields import Count, Positive, Rate, Section
from stages.surgical.selections import parse
from stages.text.tasks.settings import FinetuneParams, Tasks, Values, WarmedUp
from stages.workflow.stage import sections
from stages.workflow.stage.rules import Choice, is_on, not_among

Target = Literal["label_logit", "empirical", "expected"]


def _checked(name: str) -> str:
    parse(name)
    return name


class FimScores(Section):
    targets: list[Target] = Field(min_length=1)
    examples: list[Positive] = Field(min_length=1)
    heads: Positive


class FimParams(Section):
    tasks: Tasks
    scores: FimScores


class ChosenScore(Section):
    target: Target
    aggregation: Literal["sum_fro", "fro_concat", "trace", "mean"]
    examples: Positive


class LayerTraining(Section):
    """What differs from the section `finetune`."""

    also: list[Literal["embeddings", "pooler", "lm_head"]]
    learning_rate: Rate
    warmup_steps: Count
    batch_size: Positive

    def over(self, finetune: FinetuneParams) -> WarmedUp:
        """The section `finetune` as Lodha et al. train: whole layers, AdamW, one point for a grid."""
        grid = {"learning_rates": [self.learning_rate], "batch_sizes": [self.batch_size]}
        published = {
            "optimizer": "adamw",
            "schedule": "linear",
            "warmup_steps": self.warmup_steps,
            "weight_decay": 0.01,
        }
        return WarmedUp(**{**finetune.model_dump(), **grid, **published, "train": ["layers", *self.also]})


class SurgeryParams(Section):
    selections: list[Annotated[str, AfterValidator(_checked)]]
    tasks: Tasks
    test_max: Count
    draws: Positive
    score: ChosenScore
    training: LayerTraining


class RobustnessParams(Section):
    tasks: Tasks
    every: Positive


class Settings(sections.Settings):
    """Those of the main pipeline and, below, the sections of this one's params.yaml."""

    fim: FimParams
    surgery: SurgeryParams
    robustness: RobustnessParams


TASKS = (Choice("fim.tasks"), Choice("surgery.tasks", "fim.tasks"), Choice("robustness.tasks"))


def problems(values: Values) -> Iterator[str]:
    """The score that chooses is among those there are.  What is off has no rules."""
    if is_on(values, "fim"):  # without surgery too, since the report shows the ranking
        yield from not_among(values, "surgery.score.target", "fim.scores.targets")
        yield from not_among(values, "surgery.score.examples", "fim.scores.examples")
