"""The errors a user of the pipeline can mend.

Everything here is shown as one clear message and a non-zero exit code, without a traceback
(`stages.lib.entry`).  A mistake of a programmer stays a `TypeError` or `ValueError`.
"""

import difflib
from collections.abc import Iterable


class GraftError(Exception):
    """Something the user can mend: the message says what, where, and what is allowed."""


class ParamsError(GraftError):
    """params.yaml says something that is not allowed."""


class DataError(GraftError):
    """A data set is missing, unreadable, or not what its task says it is."""


class ModelError(GraftError):
    """A model or tokenizer is missing, unreadable, or does not fit its task."""


class MaskError(GraftError):
    """A mask is damaged, or belongs to another model."""


class TrainingError(GraftError):
    """Training went wrong in a way that settings can mend, for instance a diverging loss."""


class StorageError(GraftError):
    """A file could not be written or is not what was written."""


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """Give ` (did you mean 'x'?)` for the nearest allowed name, or an empty string."""
    near = difflib.get_close_matches(str(name), [str(item) for item in allowed], n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""
