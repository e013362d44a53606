"""Two checkpoints of anybody's: whether one can be the fine-tuned other, and how far everything moved in between."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import ModelError
from ..graft.mask import GraftMask
from ..graft.running_selection import PART
from ..models.anatomy import CLASSES, HEAD, Anatomy, anatomy_of, most_tokens, named_weights, require_embeddings
from ..models.checkpoints import Checkpoint, Named, labels_of, listed, mode_of, skeleton
from ..models.loading import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# settings of a config that change no shape, but what is computed
ARITHMETIC = re.compile(
    "n_heads?$|num_attention_heads|num_key_value_heads|head_dim|rope|rotary|theta|hidden_act|activation_function|_eps|epsilon"
    "|position_embedding_type|relative_attention|pos_att_type|is_decoder|scale|scaling|multiplier|softcap|sliding_window"
    "|layer_types|alibi|parallel|experts_per_tok|norm_topk"
)


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
        saved = after.config.get("architectures") or "nothing"
        saved = saved if isinstance(saved, str) else ", ".join(map(str, saved))
        known = (f"{name.removeprefix('AutoModelFor')} of {kinds[0]}" for name in dict.fromkeys(CLASSES.values()))
        raise ModelError(
            f"{finetuned}: its config.json says {saved}, which is none of {', '.join(known)}; "
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
    problems += [
        f"{one.checkpoint.title}: {words}"
        for one, made in ((pair.base, model), (pair.finetuned, other))
        for words in _untied(one, made)
    ]
    if changed := _arithmetic(model, other):
        problems.append(
            f"{after.title}: computes otherwise than {before.title}, which no graft can carry: its config.json has {changed}"
        )
    if mode == "standard" and len(labels) < 2:
        problems.append(
            f"{after.title}: its head has {len(labels)} output, a number and no label, and a graft is for labels"
        )
    if type(model.config)().is_encoder_decoder:
        problems.append(f"{before.title}: is an encoder-decoder, of which only half would be grafted")
    if problems:
        raise ModelError("; ".join(problems))
    return pair


def _arithmetic(ours: "PreTrainedModel", theirs: "PreTrainedModel") -> str:
    """Settings that change what a model of the same shapes computes and that differ: "rope_theta 5000 and not 10000"."""
    before, after = (model.config.to_dict() for model in (ours, theirs))
    names = [name for name in before.keys() & after.keys() if ARITHMETIC.search(name) and before[name] != after[name]]
    return listed([f"{name} {after[name]} and not {before[name]}" for name in sorted(names)])


def _untied(side: Named, model: "PreTrainedModel") -> list[str]:
    """Tensors that the config ties to others and that the file has with other values: transformers leaves such a pair untied."""
    once, problems = {id(weight): name for name, weight in named_weights(model).items()}, []
    for name, weight in model.named_parameters(remove_duplicate=False):
        stored = side.stored.get(once[id(weight)])
        if once[id(weight)] != name and stored and name in side.checkpoint.files and name != stored:
            values = [side.checkpoint.read(one) for one in (stored, name)]
            if values[0].shape != values[1].shape or not bool((values[0] == values[1]).all()):
                problems.append(f"its config.json ties {name} to {stored}, and the file has other values for it")
    return problems


def _differences(anatomy: Anatomy, ours: dict[str, list[int]], theirs: dict[str, list[int]]) -> list[str]:
    """Differences of the second model's config from the first's, outside a head."""
    others = {name: shape for name, shape in theirs.items() if anatomy.groups.get(name) != HEAD}
    words = [name for name in ours if name in others and ours[name] != others[name]]
    embeddings = [name for name in words if anatomy.groups[name] == "embeddings"]
    rest = [name for name in words if name not in embeddings] + [*(ours.keys() ^ others.keys())]
    sizes = [f"{name} {ours[name]} and {others[name]}" for name in embeddings]
    return [f"the two have other vocabularies or lengths ({listed(sizes)})"] * bool(sizes) + [
        f"the two have other layers or shapes ({listed(sorted(rest))})"
    ] * bool(rest)


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
