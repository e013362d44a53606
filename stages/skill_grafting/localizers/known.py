"""What there is to find masks with: the table of all methods, and names for one's own."""

from typing import TYPE_CHECKING

from ..support.errors import ParamsError
from . import NAMES
from .registry import REGISTERED, VARIANT, Rank, as_localizer, kind_of

if TYPE_CHECKING:
    from pandas import DataFrame


def register(name: str, rank: Rank) -> None:
    """Give a function a name that `method=` takes; raises ParamsError if the name is taken or is none.

    rank: a function of the input that every method gets and k, which returns the region indices of k parameters, the best first.
    """
    if not isinstance(name, str) or not VARIANT.fullmatch(name) or name in NAMES:
        raise ParamsError(f"{name!r}: should be a name of a-z, 0-9 and _, and none of {', '.join(NAMES)}")
    REGISTERED[name] = type(as_localizer(rank, {}, name))


def methods() -> "DataFrame":
    """A table of all methods: their names, what they need beside two models, their settings with defaults, and what they select."""
    import pandas as pd

    rows = [
        {
            "method": kind.name,
            "needs": {True: "loss", None: "weights, and a loss if it asks for one"}.get(
                kind.needs_model, "weights alone"
            ),
            "settings": ", ".join(f"{name}={field.default!r}" for name, field in kind.model_fields.items()),
            "when": kind.__doc__.partition("\n")[0],
        }
        for kind in map(kind_of, [*NAMES, *REGISTERED])
    ]
    return pd.DataFrame(rows).set_index("method")
