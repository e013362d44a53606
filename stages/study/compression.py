"""compression: what else could be kept of a task vector in as many bytes as a graft takes, by truncated SVD or by its signs.

The task vector is what fine-tuning adds to the region, finetuned - pretrained.  Each form of it is added to the pretrained model,
under the head that grafts have.  Bytes are counted without names, headers and heads:

    movement, learned   a graft: an index and a value for each parameter (`stored_bytes`)
    svd                 singular triplets of its matrices, m + n float16 numbers each: both sides times the root of the singular value
    one_bit             a bit for the sign of each parameter of a matrix, and one float32 scale, their mean distance: BitDelta (Liu et
                        al., 2024, compress_diff in its bitdelta/diff.py), whose authors then distil the scales, which isn't done here

In the last two, vectors such as biases are kept whole in float16 (BitDelta leaves them as fine-tuned) and compete with the pieces of
matrices: first comes what explains most of the squared movement for each byte, and what no longer fits is passed over.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.region import Tensors
from skill_grafting.localizers.movement import squared_movement
from stages.study.settings import Settings
from stages.text.models.evaluation import Evaluation
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.scoring import variant_rows, write_record
from stages.workflow.cells.stored import read_test_sets
from stages.workflow.cells.training import stored_bytes
from stages.workflow.stage.decorator import stage

INDEX, FLOAT16, FLOAT32 = 4, 2, 4  # bytes


@dataclass(frozen=True)
class Piece:
    """What a form adds to the tensor of this name, the bytes that it takes, and how much of the squared movement it explains."""

    name: str
    bytes: int
    explained: float
    values: Callable[[], Tensor]


def triplets(name: str, moved: Tensor, most: int) -> Iterator[Piece]:
    """The singular triplets of a matrix, largest first, as many as fit into `most` bytes; further axes count as one."""
    left, sizes, right = torch.linalg.svd(moved.reshape(len(moved), -1), full_matrices=False)
    taken = FLOAT16 * (len(left) + right.shape[1])
    for place, size in enumerate(sizes[: most // taken]):
        sides = (size.sqrt() * left[:, place]).half(), (size.sqrt() * right[place]).half()
        yield Piece(name, taken, float(size) ** 2, partial(_outer, *sides))


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return torch.outer(left.float(), right.float())


def signs(name: str, moved: Tensor, _most: int) -> Iterator[Piece]:
    """The signs of a matrix (0 counts as above it) times its mean distance, the scale that leaves least of it unexplained."""
    scale, count = moved.abs().mean(), moved.numel()
    taken = -(-count // 8) + FLOAT32
    yield Piece(name, taken, count * float(scale) ** 2, lambda: torch.where(moved < 0, -scale, scale))


PIECES = {"svd": triplets, "one_bit": signs}


def pieces(form: str, moved: Tensors, most: int) -> Iterator[Piece]:
    """All that a form may take of a task vector, in the order of its tensors; `most`: the largest budget, in bytes."""
    for name, values in moved.items():
        if values.dim() < 2:
            yield Piece(name, FLOAT16 * values.numel(), float(values.square().sum()), values.half().float)
        else:
            yield from PIECES[form](name, values, most)


def fitting(found: Iterable[Piece], budget: int) -> list[Piece]:
    """The pieces that explain most for each byte, of equal ones the first, and of those that still fit into the budget; none that explain nothing."""
    kept, left = list[Piece](), budget
    for piece in sorted(found, key=lambda piece: -piece.explained / piece.bytes):
        if piece.explained and piece.bytes <= left:
            kept.append(piece)
            left -= piece.bytes
    return kept


def summed(kept: Iterable[Piece], like: Tensors) -> dict[str, Tensor]:
    """The task vector that pieces make; zeros where there are none."""
    total = {name: torch.zeros_like(values) for name, values in like.items()}
    for piece in kept:
        total[piece.name] += piece.values().view_as(total[piece.name])
    return total


Approximation = tuple[int, int, Mapping[str, Tensor]]  # budget, bytes that are taken, the region's values


def grafted(form: str, cell: GraftCell, params: Settings) -> Iterator[Approximation]:
    """The graft of as many parameters as fit into each budget, by the localizer of this name."""
    each = INDEX + max(values.element_size() for values in cell.finetuned.values())
    counts = {budget: min(budget // each, cell.region.size) for budget in params.compression.bytes}
    sizes = [count / cell.region.size for count in counts.values()]
    localizer = getattr(params.localizer, form)
    masks = cell.masks(localizer, sizes, "compression.bytes", cell.objective(), cell.draws(form))
    for budget, size in zip(counts, sizes, strict=True):
        mask = masks[size]
        yield budget, stored_bytes(mask, cell.values_at(mask)), graft(cell.pretrained, cell.finetuned, mask)


def approximated(form: str, cell: GraftCell, params: Settings) -> Iterator[Approximation]:
    """The pretrained region with the pieces of a form that fit into each budget added."""
    budgets = params.compression.bytes
    moved = {name: (cell.finetuned[name] - before).float().cpu() for name, before in cell.pretrained.items()}
    found = [*pieces(form, moved, max(budgets))]
    for budget in budgets:
        kept = fitting(found, budget)
        added = summed(kept, moved)
        values = {name: before + added[name].to(before) for name, before in cell.pretrained.items()}
        yield budget, sum(piece.bytes for piece in kept), values


def compress(task: str, seed: int, params: Settings, machine: Runtime) -> Iterator[str]:
    """Store how good each form is at each size, on the task's own test rows; gives a line for each."""
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    own = {task: read_test_sets(task, seed)[task][: params.study.test_max or None]}
    evaluation, names, axes = Evaluation(cell.model, own, variants=1), cell.region.shapes, {}
    whole = sum(squared_movement(cell.pretrained, cell.finetuned, names).values())
    for form in params.compression.forms:
        for budget, used, values in (approximated if form in PIECES else grafted)(form, cell, params):
            title = f"compression {form} {budget} {task}-{seed}"
            lacking = sum(squared_movement(values, cell.finetuned, names).values())
            explained = 1 - lacking / whole if whole else 0.0
            cell.model.put(values)
            with evaluation.progress(title):
                evaluation.predict(f"{form}_{budget}")
            axes[f"{form}_{budget}"] = {"variant": form, "bytes": budget, "used": used, "explained": explained}
            yield f"{title}: {used:,} bytes, {100 * explained:.1f} % of the squared movement"
    predictions = evaluation.predictions()
    rows = variant_rows(predictions, task, seed, params.calibration.bins)
    write_record("compression", (), cell.about(), predictions, [{**row, **axes[row["variant"]]} for row in rows])


@stage
def main(params: Settings, machine: Runtime, seed: int) -> None:
    """Approximate the task vectors, and measure."""
    for task in params.compression.tasks if params.compression.on else []:
        for line in compress(task, seed, params, machine):
            print(line)
