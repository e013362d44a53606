"""push and pull: a patch goes onto the Hugging Face hub, or a mirror in HF_ENDPOINT, and comes from there."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import MaskError, StorageError, one_line
from ..io import replacing
from .locations import CARD, PATCH, free
from .patch_file import Patch, read_patch_file


def push(patch: Path, to: str, private: bool) -> str:
    """Put the folder of a patch into a repository of the hub, in one commit; gives one line about it.

    The card gets the licence of the base model's card.  Raises MaskError if it is no patch, and StorageError if the hub
    doesn't take it.
    """
    stored = read_patch_file(patch)
    if not (patch / CARD).is_file():
        raise MaskError(f"{patch}: has no card ({CARD})")
    from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, get_token

    if not get_token():
        raise StorageError(f"{to}: the hub wants a token to write: set HF_TOKEN, or log in with `hf auth login`")
    card = ModelCard.load(patch / CARD)
    card.data.license = card.data.license or _licence(stored)
    files = [CommitOperationAdd(CARD, str(card).encode()), CommitOperationAdd(PATCH, stored.path)]
    with _clear(to):
        repository = HfApi().create_repo(to, private=private or None, exist_ok=True).repo_id
        title = f"Graft for {stored.use.task} on {stored.use.base}"
        commit = HfApi().create_commit(repository, files, commit_message=title)
    known = card.data.license or f"none: {stored.use.base} has no card that names one"
    return f"{commit.commit_url}: {patch}, licence {known}"


def pull(name: str, to: Path, revision: str | None) -> str:
    """Fetch the patch of a repository of the hub into a new folder; gives one line about it.

    Raises MaskError if there is no whole patch in it, and StorageError if the hub doesn't give it or `to` is taken.
    """
    from huggingface_hub import snapshot_download

    target = free(to)
    with _clear(name):
        fetched = Path(snapshot_download(name, revision=revision, allow_patterns=[PATCH, CARD]))
    if not (fetched / PATCH).is_file():
        raise MaskError(f"{name}: has no {PATCH} at {revision or 'its newest commit'}, so it is no patch")
    patch = read_patch_file(fetched)
    with replacing(target, fresh=True) as partial:
        partial.mkdir()
        for file in filter(Path.is_file, (fetched / PATCH, fetched / CARD)):
            shutil.copyfile(file, partial / file.name)
    return f"{target}: patch of {patch.use.base} for {patch.use.task}, {name} at {fetched.name[:12]}"


def _licence(patch: Patch) -> str | None:
    """The licence on the base model's card, if it has one that can be asked for, as the hub writes it."""
    if patch.use.source == "packaged":
        from ..data.packages import find_package

        # "MIT (package), Apache-2.0 (model)"
        return find_package(patch.use.base, kind="model").licence.split(", ")[-1].partition(" ")[0].lower()
    if patch.use.source != "hub":
        return None
    from huggingface_hub import HfApi

    try:
        card: Any = HfApi().model_info(patch.use.base, revision=patch.use.revision).card_data
    except Exception:  # whatever keeps the card from us, the patch can go without it
        return None
    return card.license if card else None


@contextmanager
def _clear(name: str) -> Iterator[None]:
    """Say in one line what the hub, or the way to it, says against a repository."""
    from huggingface_hub import errors
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # it is about kilobytes
    try:
        yield
    except errors.HFValidationError as error:
        raise StorageError(f"{name!r} is no name of a repository such as 'owner/name': {error}") from None
    except errors.RevisionNotFoundError:
        raise StorageError(f"{name}: the hub has no such revision of it") from None
    except errors.RepositoryNotFoundError:
        raise StorageError(f"{name}: the hub has no such repository, or the token may not see it") from None
    except errors.LocalEntryNotFoundError:
        raise StorageError(f"{name}: is not in the cache, and the hub can't be reached") from None
    except Exception as error:  # a connection that breaks has no error type of its own
        raise StorageError(f"{name}: {one_line(error)}") from error
