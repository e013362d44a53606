"""Settings of the surgical pipeline, and the rules between them and the main pipeline."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from stages.lib.settings import Choice, Rate, Section, Share, Tasks, is_on, not_among, told
from stages.surgical.experiment.selections import parse

Target = Literal["label_logit", "empirical", "expected"]


def _checked(name: str) -> str:
    parse(name)
    return name


class FimScores(Section):
    targets: list[Target] = Field(min_length=1, description="whose gradient is squared")
    examples: list[Annotated[int, Field(ge=1)]] = Field(
        min_length=1, description="training examples that a score is the mean of, all if there are fewer"
    )
    heads: int = Field(ge=1, description="random heads under which a model with a new head is scored")


class FimParams(Section):
    tasks: Tasks
    scores: FimScores


class ChosenScore(Section):
    target: Target = Field(description="of the score that chooses; among fim.scores.targets")
    aggregation: Literal["sum_fro", "fro_concat", "trace", "mean"] = Field(description="of the score that chooses")
    examples: int = Field(ge=1, description="of the score that chooses; among fim.scores.examples")


class LayerTraining(Section):
    also: list[Literal["embeddings", "pooler", "lm_head"]] = Field(
        description="parameter groups that are trained with any layers"
    )
    optimizer: Literal["sgd", "adamw"]
    learning_rate: Rate
    schedule: Literal["constant", "linear"]
    warmup_steps: int = Field(ge=0, description="steps in which the learning rate rises from 0")
    batch_size: int = Field(ge=1, description="examples per step")
    steps_per_example: float = Field(gt=0, description="optimizer steps per training example")
    cap_k: int = Field(ge=1, description="examples per class beyond which steps no longer grow")
    max_steps: int | None = Field(ge=1, description="hard cap on steps; null for none")
    momentum: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0, lt=1)
    clip_norm: float = Field(ge=0, description="largest gradient norm; 0 switches clipping off")
    dropout: float | None = Field(ge=0, lt=1, description="null keeps the model's own")
    l1: float = Field(ge=0, description="weight of the l1 norm of the movement in the loss")
    head_first_steps: int = Field(ge=0, description="steps for a new head alone, before the rest")
    eval_steps: int = Field(ge=0, description="steps between dev scores, best one kept; 0 keeps the last")

    # so that it can stand for the section `finetune`: whole layers, and a grid of one point
    bias_only = property(lambda self: False)
    train = property(lambda self: ["layers", *self.also])
    learning_rates = property(lambda self: [self.learning_rate])
    batch_sizes = property(lambda self: [self.batch_size])


class SurgeryParams(Section):
    selections: list[Annotated[str, AfterValidator(_checked)]] = Field(
        description="which layers are trained: all, none, or top_K, bottom_K, random_K, first_K, middle_K, last_K"
    )
    tasks: Tasks
    test_max: int = Field(ge=0, description="rows of the test set; 0 for all")
    draws: int = Field(ge=1, description="sets of layers that a random_K draws")
    score: ChosenScore
    training: LayerTraining


class RobustnessParams(Section):
    tasks: Tasks
    every: int = Field(ge=1, description="steps between two scorings of the model in training")


class SurgicalParams(Section):
    margin: Annotated[float, Field(ge=0, lt=1)] = Field(
        description="runs whose accuracy is less than this above that of the most frequent label are flagged"
    )
    kept: Share = Field(description="share of the score of training all layers that a few should keep")
    steady: Share = Field(description="rank correlation from which on two rankings are called the same")


SECTIONS: dict[str, Any] = {
    "fim": FimParams,
    "surgery": SurgeryParams,
    "robustness": RobustnessParams,
    "surgical": SurgicalParams,
}


TASKS = (Choice("fim.tasks"), Choice("surgery.tasks", "fim.tasks"), Choice("robustness.tasks"))


def problems(values: dict[str, Any]) -> list[str]:
    """The score that chooses is among those there are, and a warm-up is shorter than training.  What is off has no rules."""
    rules = []
    if is_on(values, "fim"):  # without surgery too, since the report shows the ranking
        rules += [
            lambda values: not_among(values, "surgery.score.target", "fim.scores.targets"),
            lambda values: not_among(values, "surgery.score.examples", "fim.scores.examples"),
        ]
    if is_on(values, "surgery") or is_on(values, "robustness"):
        rules += [_warmup_problems]
    return told(rules, values)


def _warmup_problems(values: dict[str, Any]) -> Iterator[str]:
    training = values["surgery"].training
    if training.max_steps and training.warmup_steps >= training.max_steps:
        yield (
            f"surgery.training.warmup_steps: a warm-up of {training.warmup_steps} steps is longer than training's "
            f"{training.max_steps} (surgery.training.max_steps), or as long; the learning rate would never reach its value"
        )
