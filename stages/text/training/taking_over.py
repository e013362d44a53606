"""Checkpoints that were fine-tuned elsewhere, used in place of own fine-tuning."""

from pathlib import Path

import torch
from torch import Tensor

from skill_grafting.checkpoints.comparing import ONE_LABEL, fitted, labels_of, mode_of, not_finite, unread
from skill_grafting.checkpoints.files import Checkpoint, Named
from skill_grafting.checkpoints.tokenizing import other_reading
from skill_grafting.models.anatomy import ModelSpec, read_anatomy
from skill_grafting.models.loading import CLASSES, SOME_LABELS
from skill_grafting.support.errors import ModelError, did_you_mean
from skill_grafting.support.fields import HEAD
from skill_grafting.support.formatting import listed
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import dev_score
from stages.text.tasks.runtime import seeded_torch
from stages.text.tasks.settings import FinetuneParams
from stages.text.tasks.tasks import TaskSpec
from stages.text.training.finetuning import Finetuned, TrainingCell


def take_over(cell: TrainingCell, settings: FinetuneParams, place: str) -> Finetuned:
    """The pretrained model with the values of a checkpoint, and a record of their source.

    `place` is a hub id, with `@` and a commit, tag or branch if need be, or a folder in `finetune.root`.  Raises
    ModelError with every reason why it can't be the fine-tuned pretrained model, or be read for the task.
    """
    hub_id, _, revision = place.partition("@")
    where = (str(Path(settings.root) / place), None) if settings.source == "local" else (hub_id, revision or None)
    checkpoint = Checkpoint.open(*where, tokenizer=False)
    anatomy = read_anatomy(cell.pretrained)
    with seeded_torch("finetune", cell.task.name, cell.seed):
        model = cell.load(None)
    _require_kin(checkpoint, model.model.config.model_type, cell.model.mode)
    theirs = labels_of(checkpoint) if anatomy.names([HEAD]) else []
    named, problems = fitting(checkpoint, model, anatomy, len(theirs))
    order, unknown = label_order(cell.task, theirs)
    problems += [f"{checkpoint.title}: {line}" for line in (*unknown, *_other_reading(cell, checkpoint, model))]
    if problems:
        raise ModelError("; ".join(problems))
    values = {name: _unrounded(values, named[name]) for name, values in model.parameters().items() if name in named}
    if problems := not_finite(named, values):
        raise ModelError("; ".join(problems))
    model.put(values | in_order(named, anatomy, order))
    accuracy, _ = dev_score(model, model.encode(cell.rows["dev"]))
    labels = {cell.task.labels[number]: theirs[place] for number, place in enumerate(order)}
    origin = {"source": settings.source, "checkpoint": place}
    origin |= {"commit": checkpoint.commit} if checkpoint.commit else {}
    return Finetuned(model, {"dev_accuracy": accuracy, **origin, "labels": labels})


def _other_reading(cell: TrainingCell, checkpoint: Checkpoint, model: LabelModel) -> list[str]:
    """How a checkpoint says that texts or logits are read otherwise than the stages read them."""
    words = ("mask_token",) if model.mode == "prompt" else ()
    differs, problems = other_reading(cell.pretrained, checkpoint.folder, words), []
    problems += [differs] if differs else []
    if model.mode != "standard":
        return problems
    if (kind := checkpoint.config.get("problem_type")) not in (None, ONE_LABEL):
        problems.append(f"its problem_type is {kind}, and a task has one label for each text")
    ids = model.tokenizer("a")["input_ids"]
    theirs, ours = checkpoint.config.get("pad_token_id"), model.model.config.pad_token_id
    if theirs != ours and ids[-1] in (theirs, ours):
        problems.append(
            f"its pad_token_id is {theirs} and not {ours}, and texts end with that token: their answer stands elsewhere"
        )
    return problems


def _require_kin(checkpoint: Checkpoint, ours: str, mode: str) -> None:
    """Raise ModelError unless a checkpoint's config.json names our kind of model, and the class that the mode reads."""
    kind, saved = checkpoint.config.get("model_type"), ", ".join(checkpoint.saved_from) or "no class"
    if kind != ours:
        raise ModelError(
            f"{checkpoint.title}: its config.json has model_type {kind}, and the pretrained model's is {ours}"
        )
    if CLASSES.get(mode_of(checkpoint)) != CLASSES[mode]:
        wanted = f"a {CLASSES[mode].removeprefix('AutoModelFor')} class of {ours}"
        raise ModelError(
            f"{checkpoint.title}: its config.json names {saved} (architectures), and model.mode={mode} reads {wanted}"
        )


def fitting(checkpoint: Checkpoint, model: LabelModel, anatomy: ModelSpec, labels: int) -> tuple[Named, list[str]]:
    """A checkpoint under the names of the pretrained model, and every reason why it can't be that model, fine-tuned."""
    named, other, problems = fitted(checkpoint, labels, model.model, anatomy)
    if not problems and (left := unread(named, other)):
        problems = [
            f"{checkpoint.title}: {len(left)} tensor{'s'[: len(left) > 1]} that {type(other).__name__} doesn't read "
            f"({listed(left)}); load it with transformers and save it anew if they are of no use"
        ]
    return named, problems


def label_order(task: TaskSpec, theirs: list[str]) -> tuple[list[int], list[str]]:
    """For each label of the task the number that a checkpoint has it by, and what is wrong; nothing for no labels.

    A name is the task's own, in whatever case, or one that `relabel` renames; LABEL_0 and so on, unless it renames
    them, are the task's in their order.
    """
    if not theirs:
        return [], []
    if len(theirs) != len(task.labels):
        return [], [f"has {len(theirs)} labels ({', '.join(theirs)}), and the task {task.name} {len(task.labels)}"]
    relabel = task.relabel or {}
    if theirs == [f"LABEL_{number}" for number in range(len(theirs))] and relabel.keys().isdisjoint(theirs):
        return [*range(len(theirs))], []
    ours = {label.casefold(): label for label in task.labels}
    known = [relabel.get(name, ours.get(name.casefold())) for name in theirs]
    strange = [name for name, label in zip(theirs, known, strict=True) if label is None]
    if strange or len({*known}) < len(known):
        hints = ", ".join(f"{name!r}{did_you_mean(name, task.labels)}" for name in strange or theirs)
        rename = f"task.{task.name}.relabel can rename them"
        return [], [f"its labels {hints} are not those of the task {task.name} ({', '.join(task.labels)}); {rename}"]
    return [known.index(label) for label in task.labels], []


def _unrounded(before: Tensor, after: Tensor) -> Tensor:
    """The fine-tuned values in float32, pretrained ones where these were but rounded to the type that they were saved in."""
    before = before.detach().cpu()
    return (
        torch.where(before.to(after.dtype) == after, before, after.float())
        if before.shape == after.shape
        else after.float()
    )


def in_order(named: Named, anatomy: ModelSpec, order: list[int]) -> dict[str, Tensor]:
    """The tensors of a head that have a row for each label, their rows in this order."""
    rows = [name for name in anatomy.names([HEAD]) if anatomy.shapes[name][0] == SOME_LABELS]
    return {name: named[name].float()[torch.tensor(order)] for name in rows}
