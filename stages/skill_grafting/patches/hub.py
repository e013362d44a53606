"""push and pull: a patch goes onto the Hugging Face hub, or a mirror in HF_ENDPOINT, and comes from there."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, errors, get_token, snapshot_download
from huggingface_hub.utils import disable_progress_bars

from ..data.packages import find_package
from ..errors import MaskError, StorageError, one_line
from ..io import replacing
from .patch_file import PatchMetadata, read_patch
from .paths import CARD, PATCH, free

# the hub's errors in words, the first that fits
REFUSALS = {
    errors.HFValidationError: "is no name of a repository such as 'owner/name'",
    errors.RevisionNotFoundError: "the hub has no such revision of it",
    errors.RepositoryNotFoundError: "the hub has no such repository, or the token may not see it",
    errors.LocalEntryNotFoundError: "is not in the cache, and the hub can't be reached",
}


def push(patch: Path, to: str, private: bool) -> str:
    """Put the folder of a patch into a repository of the hub, in one commit; gives one line about it.

    The card gets the licence of the base model's card.  Raises MaskError if it is no patch, and StorageError if the hub
    doesn't take it.
    """
    stored = read_patch(patch)
    if not (patch / CARD).is_file():
        raise MaskError(f"{patch}: has no card ({CARD})")
    if not get_token():
        raise StorageError(f"{to}: the hub wants a token to write: set HF_TOKEN, or log in with `hf auth login`")
    card = ModelCard.load(patch / CARD)
    card.data.license = card.data.license or _licence(stored.use)
    files = [CommitOperationAdd(CARD, str(card).encode()), CommitOperationAdd(PATCH, stored.path)]
    with _plain_refusals(to):
        repository = HfApi().create_repo(to, private=private or None, exist_ok=True).repo_id
        title = f"Graft for {stored.use.task} on {stored.use.base}"
        commit = HfApi().create_commit(repository, files, commit_message=title)
    known = card.data.license or f"none: {stored.use.base} has no card that names one"
    return f"{commit.commit_url}: {patch}, licence {known}"


def pull(name: str, to: Path, revision: str | None) -> str:
    """Fetch the patch of a repository of the hub into a new folder; gives one line about it.

    Raises MaskError if there is no whole patch in it, and StorageError if the hub doesn't give it or `to` is taken.
    """
    target = free(to)
    with _plain_refusals(name):
        fetched = Path(snapshot_download(name, revision=revision, allow_patterns=[PATCH, CARD]))
    if not (fetched / PATCH).is_file():
        raise MaskError(f"{name}: has no {PATCH} at {revision or 'its newest commit'}, so it is no patch")
    use = read_patch(fetched).use
    with replacing(target, fresh=True) as partial:
        partial.mkdir()
        for file in filter(Path.is_file, (fetched / PATCH, fetched / CARD)):
            shutil.copyfile(file, partial / file.name)
    return f"{target}: patch of {use.base} for {use.task}, {name} at {fetched.name[:12]}"


def _licence(use: PatchMetadata) -> str | None:
    """The licence on the base model's card, as the hub writes it; None where there is no such card within reach."""
    if use.source == "packaged":  # "MIT (package), Apache-2.0 (model)"
        return find_package(use.base, kind="model").licence.split(", ")[-1].partition(" ")[0].lower()
    if use.source != "hub":
        return None
    try:
        return HfApi().model_info(use.base, revision=use.revision).card_data.license
    except Exception:  # whatever keeps the card from us, the patch can go without it
        return None


@contextmanager
def _plain_refusals(name: str) -> Iterator[None]:
    """Turn the errors of the hub, and of the network, into one line about a repository."""
    disable_progress_bars()  # files have kilobytes
    try:
        yield
    except Exception as error:  # a connection that breaks has no error type of its own
        reason = next((words for kind, words in REFUSALS.items() if isinstance(error, kind)), one_line(error))
        raise StorageError(f"{name}: {reason}") from error
