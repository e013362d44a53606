"""Any two checkpoints: whether one can be the other after fine-tuning, and how far everything moved in between."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import ModelError
from ..grafting.mask import GraftMask
from ..grafting.region import PART
from ..models.anatomy import CLASSES, ModelSpec
from ..models.checkpoints import (
    Checkpoint,
    Named,
    fitted,
    labels_of,
    lacking,
    listed,
    mode_of,
    skeleton,
    unread,
    untied,
)
from ..models.loading import load_tokenizer
from ..models.probing import most_tokens
from ..models.structure import anatomy_of, require_embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Pair:
    """A pretrained and a fine-tuned checkpoint of one architecture, under the same names, and the base's tokenizer.

    `most_tokens` is as probing.py has it; `unread`: tensors of the fine-tuned one that its class computes without.
    """

    base: Named
    finetuned: Named
    spec: ModelSpec
    labels: list[str]
    tokenizer: Any
    most_tokens: int | None
    unread: list[str]

    @property
    def rounded_base(self) -> Named:
        """The base in the types of the fine-tuned one, by which alone it was moved: rounding is no movement."""
        return replace(self.base, rounded_as=self.finetuned)

    @property
    def rounding(self) -> list[str]:
        """A line on the rounding, if the fine-tuned one was saved in a narrower type."""
        if "F32" not in self.base.types or "F32" in self.finetuned.types:
            return []
        title, types = self.base.checkpoint.title, " and ".join(sorted(self.finetuned.types))
        return [
            f"Compared with {title} rounded to {types}, as {self.finetuned.checkpoint.title} was saved: rounding is no movement."
        ]


def open_pair(base: str, finetuned: str, mode: str | None, revisions: tuple[str | None, str | None]) -> Pair:
    """Both checkpoints; raises ModelError with every reason why one can't be the fine-tuned other."""
    before = Checkpoint.open(base, revisions[0])
    after = Checkpoint.open(finetuned, revisions[1], tokenizer=False)
    _require_no_decoder(before)
    mode = _common_mode(before, after, mode)
    labels = labels_of(after) if mode == "standard" else []
    (model, spec, named, problems), tokenizer = _read_as(before, mode), load_tokenizer(before.folder)
    require_embeddings(before.title, model, len(tokenizer))
    tuned, other, misfits = fitted(after, len(labels), model, spec)
    problems += misfits
    if mode == "standard" and len(labels) < 2:
        reason = f"its head has {len(labels)} output, a number and no label, and a graft is for labels"
        problems.append(f"{after.title}: {reason}")
    if problems:
        raise ModelError("; ".join(problems))
    return Pair(named, tuned, spec, labels, tokenizer, most_tokens(model), unread(tuned, other))


def _read_as(checkpoint: Checkpoint, mode: str) -> tuple["PreTrainedModel", ModelSpec, Named, list[str]]:
    """A checkpoint as the class of a mode: a model without values, its structure, the stored tensors, and all that is wrong."""
    model = skeleton(checkpoint, mode)
    name = checkpoint.title if checkpoint.source == "hub" else checkpoint.folder.resolve().name
    spec = anatomy_of(model, mode, name, checkpoint.source, checkpoint.commit, lacking(checkpoint, model))
    named = Named.of(checkpoint, spec.pretrained, model.base_model_prefix)
    return model, spec, named, named.problems(spec.pretrained) + untied(named, model)


def _require_no_decoder(checkpoint: Checkpoint) -> None:
    from transformers import CONFIG_MAPPING

    kind = checkpoint.config.get("model_type")
    if kind in CONFIG_MAPPING and CONFIG_MAPPING[kind]().is_encoder_decoder:
        raise ModelError(f"{checkpoint.title}: is an encoder-decoder, of which only half would be grafted")


def _common_mode(before: Checkpoint, after: Checkpoint, mode: str | None) -> str:
    """This mode, or that of the fine-tuned checkpoint's class; raises ModelError if the two are not of one kind."""
    if before.folder.resolve() == after.folder.resolve():
        raise ModelError(f"{after.title}: is the base model itself; take what was fine-tuned from it")
    kinds = [str(one.config.get("model_type")) for one in (before, after)]
    if kinds[0] != kinds[1]:
        raise ModelError(f"{after.title}: is a model of the kind {kinds[1]}, and {before.title} of the kind {kinds[0]}")
    if mode := mode or mode_of(after):
        return mode
    saved = ", ".join(after.saved_from) or "no class"
    known = (f"{name.removeprefix('AutoModelFor')} of {kinds[0]}" for name in dict.fromkeys(CLASSES.values()))
    reason = f"its config.json says {saved}, which is none of {', '.join(known)}"
    raise ModelError(f"{after.title}: {reason}; choose --mode, one of {', '.join(CLASSES)}")


def squared_movement(pair: Pair, region: Sequence[str], step: Callable[[str], object]) -> Counter[str]:
    """Squared distance that each group of parameters outside a new head moved, found tensor by tensor, with a `step` for each.

    Raises ModelError if nothing moved in the groups of the region or a value is no number.
    """
    squares: Counter[str] = Counter()
    base, tuned, strange = pair.rounded_base, pair.finetuned, {}
    for name in tuned.stored:
        sides = [side for side in (base, tuned) if name in side.stored]  # a new head is in the fine-tuned one alone
        values = [side.read(name).reshape(-1) for side in sides]
        for first in range(0, len(values[0]), PART):
            parts = [one[first : first + PART].float() for one in values]
            for side, part in zip(sides, parts, strict=True):
                if not bool(part.isfinite().all()):
                    strange.setdefault(side.checkpoint.title, {})[name] = None
            if len(parts) > 1:
                squares[pair.spec.groups[name]] += float((parts[1] - parts[0]).double().square_().sum())
        step(name)
    if strange:
        lines = (f"{title}: values that are no numbers ({listed([*names])})" for title, names in strange.items())
        raise ModelError("; ".join(lines))
    if not any(squares[name] for name in region):
        elsewhere = ", ".join(name for name, distance in squares.items() if distance)
        where = f" in {', '.join(region)}" if elsewhere else ""
        hint = f"; {elsewhere} did, and --region takes them in" if elsewhere else ""
        same = f"has the same values as {base.checkpoint.title}{where}: nothing moved{hint}"
        raise ModelError(f"{tuned.checkpoint.title}: {same}")
    return squares


def squared_movement_in(pair: Pair, mask: GraftMask, values: dict[str, Tensor]) -> float:
    """The sum of the squared distances that the selected parameters moved."""
    before = {name: pair.rounded_base.read(name).reshape(-1)[indices] for name, indices in mask.indices.items()}
    return sum(float((values[name].float() - start.float()).double().square().sum()) for name, start in before.items())
