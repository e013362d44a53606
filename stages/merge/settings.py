"""Settings of merged models, the rules between them and the main pipeline, and which single-task models each method merges.

A merged model is made of grafts, each within its mask, or of whole fine-tuned models.  A localizer's name with a share
of the region, such as stitch_0.01, stands for grafts of that size by that localizer, stitched by the mean.
"""

import re
from collections.abc import Iterator

from pydantic import Field

from skill_grafting.support.errors import did_you_mean
from skill_grafting.support.fields import Count, Rate, Section, Weight
from stages.text.scores.variants import FINETUNED, GRAFTED
from stages.text.tasks.settings import Name, Share, Tasks, Values
from stages.workflow.stage import sections
from stages.workflow.stage.rules import Choice, is_on, unknown_localizers

# these stitch grafts by a rule, stitch_RULE
STITCHES = ("stitch_mean", "stitch_sum", "stitch_sequence", "stitch_largest")
# method -> the single-task model that it is made of; what isn't stitched adds a vector (skill_grafting/merging.py), which all but
# the average scale by an alpha that dev chooses
KINDS = dict.fromkeys([*STITCHES, "grafted_arithmetic"], GRAFTED) | dict.fromkeys(
    ["average", "arithmetic", "ties", "dare", "consensus"], FINETUNED
)
# the single-task models of methods that look for masks of their own
LOCALIZED = "localized"
# grafts of equal size of what moved most, beside these
MOVED = "moved"
# the variant of a merged model beside the single-task ones
MERGED = "merged"
_WITH_SHARE = re.compile(r"([a-z]\w*)_(1|0\.[0-9]+)")


def kind_of(method: str) -> str:
    """The single-task model that a method merges."""
    return KINDS.get(method, LOCALIZED)


def read_localized(method: str) -> tuple[str, float] | None:
    """Localizer and share of the region of a name such as stitch_0.01; None for any other name."""
    match = _WITH_SHARE.fullmatch(method)
    return (match[1], float(match[2])) if match and float(match[2]) else None


class MergeParams(Section):
    groups: dict[Name, Tasks]
    test_max: Count


class Search(Section):
    alphas: list[Weight] = Field(min_length=1)
    strictness: list[Weight] = Field(min_length=1)
    rates: list[Rate] = Field(min_length=1)
    dev_max: Count


class VectorShares(Section):
    ties: Share
    dare: Share


class CombinationParams(Section):
    methods: list[Name]
    search: Search
    shares: VectorShares


class Settings(sections.Settings):
    """Those of the main pipeline and, below, the sections of this one's params.yaml."""

    merge: MergeParams
    combination: CombinationParams


TASKS = (Choice("merge.groups", least=2),)


def problems(values: Values) -> Iterator[str]:
    """Methods are names of rules, or of a localizer and a share.  Without groups no rules."""
    if not is_on(values, "merge", {}):
        return
    methods = [name for name in values["combination"].methods if name not in KINDS]
    localized = {name: read[0] for name in methods if (read := read_localized(name))}
    yield from unknown_localizers(values, "combination.methods", [*localized.values()])
    for name in methods:
        if name not in localized:
            yield (
                f"combination.methods: unknown method {name!r}{did_you_mean(name, KINDS)}; "
                f"known: {', '.join(KINDS)}, and LOCALIZER_SHARE, such as stitch_0.01"
            )
