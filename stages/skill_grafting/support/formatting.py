"""Formats of numbers and lists of names; a stranger's text as Markdown may have it."""

import math
import re
from collections.abc import Sequence

from .errors import printable

UNKNOWN = "n/a"
# of a list of names so many are said
MOST_NAMED = 3
# what Markdown or HTML takes for its own; *, & and < only where they begin something
LIVE = re.compile(r"[\\`_|~\[\]]|\*(?! )|<(?=[A-Za-z/!?])|&(?=#?\w+;)")
ENTITIES = {"<": "&lt;", "&": "&amp;"}


def as_markdown(text: str) -> str:
    """A stranger's text for Markdown outside of code, on one line: shown as it is, with no link, tag or emphasis of its own."""
    line = printable(text).replace("\n", "\\n")
    return LIVE.sub(lambda found: ENTITIES.get(found[0], f"\\{found[0]}"), line)


def percent(share: float | None, decimals: int = 1) -> str:
    """`0.905` as "90.5", without the sign of percent."""
    return UNKNOWN if share is None else f"{100 * share:z.{decimals}f}"


def small_percent(share: float) -> str:
    """A share with two decimals, or more if it takes them to show two digits: "1.00 %", "0.0043 %"."""
    value = 100 * share
    decimals = max(2, 1 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:.{decimals}f} %"


def counted(number: int, thing: str) -> str:
    """A number with its noun: "1 seed", "3 seeds"."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join([*names[:MOST_NAMED], *[f"{len(names) - MOST_NAMED:,} more"] * (len(names) > MOST_NAMED)])
