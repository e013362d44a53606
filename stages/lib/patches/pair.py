"""Two checkpoints of anybody's: whether one can be the fine-tuned other, and how far everything moved in between."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import ModelError
from ..graft.mask import GraftMask
from ..graft.running_selection import PART
from ..models.anatomy import HEAD, Anatomy, most_tokens, require_embeddings
from ..models.checkpoints import Checkpoint, Named, anatomy_of, labels_of, listed, mode_of, skeleton
from ..models.classes import CLASSES, named_weights
from ..models.loading import load_tokenizer
from .base import Base

Look = Callable[[str], object]


@dataclass(frozen=True)
class Pair:
    """A pretrained and a fine-tuned checkpoint of one architecture, under the same names, and the base's tokenizer.

    `most_tokens` is as anatomy.py has it.
    """

    base: Named
    finetuned: Named
    anatomy: Anatomy
    labels: list[str]
    tokenizer: Any
    most_tokens: int | None

    @property
    def mode(self) -> str:
        """How labels are read off the fine-tuned one: `model.mode`."""
        return self.anatomy.mode

    def pretrained_parameters(self) -> Base:
        """The base model as patches know it, its tensors read when they are asked for."""
        return Base(self.base.checkpoint.folder, self.anatomy, self.base.values())

    def head(self) -> dict[str, Tensor]:
        """The trained head in its own dtype; none where labels are read off words."""
        return {name: self.finetuned.read(name).clone() for name in self.anatomy.names([HEAD])}


def open_pair(
    base: str, finetuned: str, mode: str | None = None, revisions: tuple[str | None, str | None] = (None, None)
) -> Pair:
    """Both checkpoints; raises ModelError with every reason why one can't be the fine-tuned other."""
    before = Checkpoint.open(base, revisions[0])
    after = Checkpoint.open(finetuned, revisions[1], tokenizer=False)
    if before.folder.resolve() == after.folder.resolve():
        raise ModelError(f"{finetuned}: is the base model itself; take what was fine-tuned from it")
    kinds = [str(one.config.get("model_type")) for one in (before, after)]
    if kinds[0] != kinds[1]:
        raise ModelError(f"{finetuned}: is a model of the kind {kinds[1]}, and {base} of the kind {kinds[0]}")
    mode = mode or mode_of(after)
    if mode is None:
        saved = ", ".join(after.config.get("architectures") or ["nothing"])
        raise ModelError(
            f"{finetuned}: its config.json says {saved}, which is none of {', '.join(_classes(kinds[0]))}; "
            f"say --mode, one of {', '.join(CLASSES)}"
        )
    return _checked(before, after, mode, revisions[0])


def _checked(before: Checkpoint, after: Checkpoint, mode: str, revision: str | None) -> Pair:
    labels = labels_of(after) if mode == "standard" else []
    model, other = skeleton(before, mode), skeleton(after, mode, len(labels))
    tokenizer = load_tokenizer(before.folder)
    require_embeddings(before.title, model, len(tokenizer))
    name = before.title if before.source == "hub" else before.folder.resolve().name
    anatomy = anatomy_of(model, mode, name, before.source, before.commit or revision)
    prefix = model.base_model_prefix
    ours = {name: shape for name, shape in anatomy.shapes.items() if anatomy.groups[name] != HEAD}
    theirs = {name: list(parameter.shape) for name, parameter in named_weights(other).items()}
    names = Named.of(before, ours, prefix), Named.of(after, theirs, prefix)
    pair = Pair(*names, anatomy, labels, tokenizer, most_tokens(model))
    problems = pair.base.problems(ours) + pair.finetuned.problems(theirs) + _differences(anatomy, ours, theirs)
    if mode == "standard" and len(labels) < 2:
        problems.append(
            f"{after.title}: its head has {len(labels)} output, a number and no label, and a graft is for labels"
        )
    if type(model.config)().is_encoder_decoder:
        problems.append(f"{before.title}: is an encoder-decoder, of which only half would be grafted")
    if problems:
        raise ModelError("; ".join(problems))
    return pair


def _classes(kind: str) -> list[str]:
    """What a fine-tuned model of this kind can be saved from, without their shared endings."""
    return [name.removeprefix("AutoModelFor") + f" of {kind}" for name in dict.fromkeys(CLASSES.values())]


def _differences(anatomy: Anatomy, ours: dict[str, list[int]], theirs: dict[str, list[int]]) -> list[str]:
    """How the second model differs from the first by their configs, outside a head."""
    others = {name: shape for name, shape in theirs.items() if anatomy.groups.get(name) != HEAD}
    words = [name for name in ours if name in others and ours[name] != others[name]]
    embeddings = [name for name in words if anatomy.groups[name] == "embeddings"]
    rest = [name for name in words if name not in embeddings] + [*(ours.keys() ^ others.keys())]
    sizes = [f"{name} {ours[name]} and {others[name]}" for name in embeddings]
    return [f"the two have other vocabularies or lengths ({listed(sizes)})"] * bool(sizes) + [
        f"the two have other layers or shapes ({listed(sorted(rest))})"
    ] * bool(rest)


@dataclass(frozen=True)
class Movement:
    """How far a group of parameters moved: how many of them did, and the sum of their squared distances."""

    parameters: int = 0
    moved: int = 0
    squares: float = 0.0

    def __add__(self, other: "Movement") -> "Movement":
        """Both groups together."""
        return Movement(self.parameters + other.parameters, self.moved + other.moved, self.squares + other.squares)


def survey(pair: Pair, look: Look) -> dict[str, Movement]:
    """The movement of each group of parameters outside a new head; raises ModelError if nothing moved or is no number."""
    found: dict[str, Movement] = {}
    strange: dict[str, list[str]] = {}
    for name in pair.base.stored:
        sides = [(side.checkpoint.title, side.read(name).reshape(-1)) for side in (pair.base, pair.finetuned)]
        for first in range(0, len(sides[0][1]), PART):
            parts = [values[first : first + PART].float() for _, values in sides]
            for (title, _), part in zip(sides, parts, strict=True):
                if not bool(part.isfinite().all()) and name not in strange.setdefault(title, []):
                    strange[title].append(name)
            delta = parts[1] - parts[0]
            moved = Movement(len(delta), int((delta != 0).sum()), float(delta.double().square_().sum()))
            group = pair.anatomy.groups[name]
            found[group] = found.get(group, Movement()) + moved
        look(name)
    bad = [f"{title}: values that are no numbers ({listed(names)})" for title, names in strange.items() if names]
    if bad:
        raise ModelError("; ".join(bad))
    if not any(group.moved for group in found.values()):
        raise ModelError(
            f"{pair.finetuned.checkpoint.title}: has the same values as {pair.base.checkpoint.title}: nothing moved"
        )
    return found


def carried(pair: Pair, mask: GraftMask, values: dict[str, Tensor]) -> float:
    """The sum of the squared distances that the selected parameters moved."""
    before = {name: pair.base.read(name).reshape(-1)[indices] for name, indices in mask.indices.items()}
    return sum(float((values[name].float() - start.float()).double().square().sum()) for name, start in before.items())
