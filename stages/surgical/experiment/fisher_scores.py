"""FIM scores of one cell: the Fisher information of its training rows about each layer of the pretrained model."""

from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor

from skill_grafting.data.encoding import Example
from skill_grafting.io import read_json, read_rows, require, write_sealed
from skill_grafting.models.anatomy import HEAD, LAYERS, ModelSpec, read_anatomy
from skill_grafting.models.fisher import squared_gradients
from skill_grafting.models.label_model import LabelModel
from skill_grafting.progress import progress
from skill_grafting.runtime import Runtime, permuted, seeded_torch
from skill_grafting.settings import Params
from stages.surgical.experiment.layers import by_layer, layer_scores
from stages.workflow.core import paths
from stages.workflow.core.stored import read_task

Scores = dict[str, list[float]]


def score_layers(task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store the scores of every layer by every target, aggregation and number of examples; returns a line for the log.

    A model that starts with a new head is scored once under each of several random ones, since
    gradients below a head are what it makes of them.
    """
    spec, rows = read_task(task), read_rows(paths.sample(task, seed, "train"))
    anatomy = read_anatomy(paths.PRETRAINED)
    layers = layers_of(anatomy)
    heads = params.fim.scores.heads if anatomy.names([HEAD]) else 1
    scored: list[dict[str, Any]] = []
    with progress(f"fim {task}-{seed}", heads * len(params.fim.scores.targets), "score") as bar:
        for head in range(heads):
            with seeded_torch("fim", task, seed, head):
                model = LabelModel.load(paths.PRETRAINED, spec, params.model, machine)
            examples = drawn_rows(model.encode(rows), task, seed)
            for target in params.fim.scores.targets:
                found = scores_by_count(model, examples, params.fim.scores.examples, layers, target)
                for count, scores in found.items():
                    axes = {"target": target, "examples": count, "used": min(count, len(examples)), "head": head}
                    scored += [{**axes, "aggregation": name, "scores": values} for name, values in scores.items()]
                bar.update()
    record = {"stage": "fim", "task": task, "seed": seed, "parameters": layer_sizes(anatomy)}
    write_sealed(paths.stage_record("fim", (), task, seed), {**record, "rows": scored})
    return f"fim {task}-{seed}: {len(layers)} layers, {len(scored)} scorings"


def drawn_rows(examples: list[Example], task: str, seed: int) -> list[Example]:
    """The training examples of a cell in the order in which scores take them."""
    return permuted(examples, "fim", "rows", task, seed)


def layers_of(anatomy: ModelSpec) -> dict[int, list[str]]:
    """Layer -> names of its tensors, those of the repeated blocks alone."""
    return by_layer(anatomy.region([LAYERS]))


def layer_sizes(anatomy: ModelSpec) -> list[int]:
    """Number of parameters of each layer."""
    shapes = anatomy.region([LAYERS]).shapes
    return [sum(prod(shapes[name]) for name in names) for names in layers_of(anatomy).values()]


def scores_by_count(
    model: LabelModel, examples: list[Example], counts: Sequence[int], layers: dict[int, list[str]], target: str
) -> dict[int, Scores]:
    """Number of examples -> aggregation -> scores of the layers, from the first so many examples.

    Each count goes on where the one before it stopped.  Counts beyond the examples there are don't
    come back, but for the smallest of them, which takes them all.
    """
    names = [name for part in layers.values() for name in part]
    totals: dict[str, Tensor] = {}
    by_count: dict[int, Scores] = {}
    done = 0
    for count in sorted({*counts}):
        if done < len(examples):
            part = squared_gradients(model, examples[done:count], names, target)
            totals = {name: totals[name] + part[name] for name in names} if totals else part
            done = min(count, len(examples))
            by_count[count] = layer_scores(totals, done, layers)
    return by_count


def read_scores(task: str, seed: int, target: str, aggregation: str, examples: int) -> list[float]:
    """The stored scores of a cell's layers, their mean over heads; those of all examples if there are fewer."""
    path = require(paths.stage_record("fim", (), task, seed), f"stages/surgical/dvc.yaml:fim@{seed}")
    rows = [row for row in read_json(path)["rows"] if row["target"] == target and row["aggregation"] == aggregation]
    count = max(row["examples"] for row in rows if row["examples"] <= examples)
    values = [row["scores"] for row in rows if row["examples"] == count]
    return [sum(column) / len(column) for column in zip(*values, strict=True)]
