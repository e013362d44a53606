"""Models that read labels off texts: of a patch on its base, of a whole model's folder, and the fine-tuned one of a pair."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..data.tasks import TaskSpec
from ..errors import ModelError
from ..models.checkpoints import Checkpoint
from ..models.comparing import labels_of, mode_of
from ..models.folders import find_checkpoint, has_tokenizer
from ..models.label_model import LabelModel
from ..models.loading import classes, load_model, load_tokenizer
from ..models.sources import wanted_links
from ..models.stored_pairs import StoredPair
from ..models.visibility import most_tokens
from ..runtime import best_runtime
from ..settings import ModelParams
from .patch_file import PatchContent
from .placing import load_base, put_on

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# of a model without a limit of its own
MOST_TOKENS = 512


def patched(patch: PatchContent, base: str) -> LabelModel:
    """The base model with a patch on it, whose metadata defines how its labels are read."""
    use, mode = (
        patch.use,
        next((mode for mode, names in classes().items() if patch.use.model_class in names.values()), None),
    )
    if not use.labels or mode is None:
        raise ModelError("the patch has no labels to choose among; `graft localize` takes --prompt and --verbalizer")
    folder, _ = find_checkpoint(base)
    model = put_on(patch, load_base(patch, folder), f"the model in {folder}")
    task = TaskSpec.read_as(use.title, use.labels, mode, use.prompt)
    return LabelModel(model, load_tokenizer(folder), task, mode, use.max_length, best_runtime())


def whole(folder: Path) -> LabelModel:
    """A classifier with its own labels."""
    checkpoint = Checkpoint.open(str(folder))
    if mode_of(checkpoint) != "standard":
        reason = "of a language model give the patch, which has prompt and label words"
        raise ModelError(f"{folder}: is no classifier; {reason}")
    task = TaskSpec.read_as(folder.name, labels_of(checkpoint), "standard")
    model, tokenizer = load_model(folder, "standard", task.labels), load_tokenizer(folder)
    return LabelModel(model, tokenizer, task, "standard", longest_text(tokenizer, model), best_runtime())


def tuned_of(pair: StoredPair, task: TaskSpec, max_length: int) -> LabelModel:
    """The fine-tuned model, live."""
    tuned, base = pair.tuned.checkpoint.folder, pair.base.checkpoint.folder
    settings = ModelParams.model_construct(mode=pair.kind, max_length=max_length)
    with tempfile.TemporaryDirectory(prefix="graft-localize-") as scratch:
        links = wanted_links(tuned, tuned if has_tokenizer(tuned) else base, Path(scratch))
        return LabelModel.load(links, task, settings, best_runtime())


def longest_text(tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel") -> int:
    """The tokens that a text may have by its tokenizer and by what the model can read; at most MOST_TOKENS."""
    return min(tokenizer.model_max_length, MOST_TOKENS, most_tokens(model) or MOST_TOKENS)
