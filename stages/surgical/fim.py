"""fim: the FIM score of every layer of the pretrained model, for all tasks of one seed."""

from math import prod
from typing import Any

from skill_grafting.models.anatomy import ModelSpec, read_anatomy
from skill_grafting.support.fields import HEAD, LAYERS
from skill_grafting.support.io import read_rows, write_json
from skill_grafting.support.progress import progress
from stages.surgical.layers import drawn_rows, layers_of, scores_by_count
from stages.surgical.settings import Settings
from stages.text.models.label_model import LabelModel
from stages.text.tasks.runtime import Runtime, seeded_torch
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage


def score_layers(task: str, seed: int, params: Settings, machine: Runtime) -> str:
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
    write_json(paths.record("fim", task, seed), {**record, "rows": scored})
    return f"fim {task}-{seed}: {len(layers)} layers, {len(scored)} scorings"


def layer_sizes(anatomy: ModelSpec) -> list[int]:
    """Number of parameters of each layer."""
    shapes = anatomy.region([LAYERS]).shapes
    return [sum(prod(shapes[name]) for name in names) for names in layers_of(anatomy).values()]


@stage
def main(params: Settings, machine: Runtime, seed: int) -> None:
    """Score the layers by every target, aggregation and number of examples."""
    for task in params.fim.tasks:
        print(score_layers(task, seed, params, machine))
