"""How the ways to find a task's region in a joint model are named: a localizer, and the base that it learns from."""

import re

from stages.lib.localizers.settings import NAMES

# These learn from a base.  The paper takes none (figure 8), and shows larger ones (figures 11 and 12).
FROM_A_BASE = ("learned", "attribution_learned")
WITH_SHARE = re.compile(rf"({'|'.join(FROM_A_BASE)})_(0|1|[01]\.[0-9]+)")


def read_name(name: str) -> tuple[str, float] | None:
    """(localizer, base as a share of the budget): `learned` has the base 0, `learned_0.1` one of 0.1.

    None if that isn't the name of anything, or the share is above 1.
    """
    if name in NAMES:
        return name, 0.0
    match = WITH_SHARE.fullmatch(name)
    return (match[1], float(match[2])) if match and float(match[2]) <= 1 else None
