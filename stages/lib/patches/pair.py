"""Two checkpoints of anybody's: whether one can be the fine-tuned other, and how far everything moved in between."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import ModelError
from ..grafting.mask import GraftMask
from ..grafting.select import PART
from ..models.anatomy import CLASSES, ModelSpec, most_tokens, shapes_of
from ..models.checkpoints import Checkpoint, Named, fitted, labels_of, listed, mode_of, skeleton, unread, untied
from ..models.loading import load_tokenizer
from ..models.structure import anatomy_of, require_embeddings


@dataclass(frozen=True)
class Pair:
    """A pretrained and a fine-tuned checkpoint of one architecture, under the same names, and the base's tokenizer.

    `most_tokens` is as anatomy.py has it; `unread`: tensors of the fine-tuned one that its class computes without.
    """

    base: Named
    finetuned: Named
    anatomy: ModelSpec
    labels: list[str]
    tokenizer: Any
    most_tokens: int | None
    unread: list[str]

    @property
    def mode(self) -> str:
        """The reading of labels off the fine-tuned one: `model.mode`."""
        return self.anatomy.mode


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
        saved = ", ".join(after.saved_from) or "no class"
        known = (f"{name.removeprefix('AutoModelFor')} of {kinds[0]}" for name in dict.fromkeys(CLASSES.values()))
        raise ModelError(
            f"{finetuned}: its config.json says {saved}, which is none of {', '.join(known)}; "
            f"say --mode, one of {', '.join(CLASSES)}"
        )
    return _checked(before, after, mode, revisions[0])


def _checked(before: Checkpoint, after: Checkpoint, mode: str, revision: str | None) -> Pair:
    labels = labels_of(after) if mode == "standard" else []
    model = skeleton(before, mode)
    tokenizer = load_tokenizer(before.folder)
    require_embeddings(before.title, model, len(tokenizer))
    name = before.title if before.source == "hub" else before.folder.resolve().name
    lacking = [one for one in (names := shapes_of(model)) if one not in Named.of(before, names, model.base_model_prefix).stored]
    anatomy = anatomy_of(model, mode, name, before.source, before.commit or revision, lacking)
    base = Named.of(before, anatomy.pretrained, model.base_model_prefix)
    finetuned, other, misfits = fitted(after, len(labels), model, anatomy)
    pair = Pair(base, finetuned, anatomy, labels, tokenizer, most_tokens(model), unread(finetuned, other))
    problems = base.problems(anatomy.pretrained) + untied(base, model) + misfits
    if mode == "standard" and len(labels) < 2:
        problems.append(
            f"{after.title}: its head has {len(labels)} output, a number and no label, and a graft is for labels"
        )
    if type(model.config)().is_encoder_decoder:
        problems.append(f"{before.title}: is an encoder-decoder, of which only half would be grafted")
    if problems:
        raise ModelError("; ".join(problems))
    return pair


def survey(pair: Pair, region: Sequence[str], look: Callable[[str], object]) -> Counter[str]:
    """Squared distance that each group of parameters outside a new head moved.

    Raises ModelError if nothing moved in the groups of the region or a value is no number.
    """
    squares: Counter[str] = Counter()
    strange: dict[str, list[str]] = {}
    titles = [side.checkpoint.title for side in (pair.base, pair.finetuned)]
    for name in pair.base.stored:
        sides = [side.read(name).reshape(-1) for side in (pair.base, pair.finetuned)]
        for first in range(0, len(sides[0]), PART):
            before, after = (values[first : first + PART].float() for values in sides)
            for title, part in zip(titles, (before, after), strict=True):
                if not bool(part.isfinite().all()) and name not in strange.setdefault(title, []):
                    strange[title].append(name)
            squares[pair.anatomy.groups[name]] += float((after - before).double().square_().sum())
        look(name)
    for name in pair.finetuned.stored.keys() - pair.base.stored.keys():  # a new head
        if not bool(pair.finetuned.read(name).float().isfinite().all()):
            strange.setdefault(titles[1], []).append(name)
    if strange:
        bad = (f"{title}: values that are no numbers ({listed(names)})" for title, names in strange.items())
        raise ModelError("; ".join(bad))
    if not any(squares[name] for name in region):
        elsewhere = ", ".join(name for name, distance in squares.items() if distance)
        where = f" in {', '.join(region)}" if elsewhere else ""
        hint = f"; {elsewhere} did, and --region takes them in" if elsewhere else ""
        raise ModelError(f"{titles[1]}: has the same values as {titles[0]}{where}: nothing moved{hint}")
    return squares


def carried(pair: Pair, mask: GraftMask, values: dict[str, Tensor]) -> float:
    """The sum of the squared distances that the selected parameters moved."""
    before = {name: pair.base.read(name).reshape(-1)[indices] for name, indices in mask.indices.items()}
    return sum(float((values[name].float() - start.float()).double().square().sum()) for name, start in before.items())
