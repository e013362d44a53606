"""Settings of merged models, and the rules between them and the main pipeline."""

from typing import Annotated, Any

from pydantic import Field

from stages.lib.errors import did_you_mean
from stages.lib.localizers.settings import SHARED, name_problems
from stages.lib.merging.names import NAMES, read_localized
from stages.lib.settings import Choice, Name, Section, Share, is_on


class MergeParams(Section):
    groups: dict[Name, list[Name] | None] = Field(
        description="name -> tasks that become one model, in the order of sequence; null for all"
    )
    test_max: int = Field(ge=0, description="rows of every test set that are used; 0 for all")


class AlphaSearch(Section):
    alphas: list[Annotated[float, Field(ge=0)]] = Field(
        min_length=1, description="weights of what is added to the pretrained model, chosen on dev"
    )
    strictness: list[Annotated[float, Field(ge=0)]] = Field(
        min_length=1, description="lambdas of consensus, chosen for each task on dev"
    )
    dev_max: int = Field(ge=0, description="dev rows of each task that choose; 0 for all")


class VectorShares(Section):
    ties: Share = Field(description="share of each task vector that TIES keeps, by movement")
    dare: Share = Field(description="share of each task vector that DARE keeps, at random")


class CombinationParams(Section):
    methods: list[Name] = Field(description="ways to make one model of several")
    search: AlphaSearch
    shares: VectorShares


SECTIONS: dict[str, Any] = {"merge": MergeParams, "combination": CombinationParams}

TASKS = (Choice("merge.groups", least=2),)


def group_tasks(values: dict[str, Any]) -> int:
    """Tasks that are merged, of all groups together."""
    return sum(map(len, values["merge"].groups.values()))


# what the costs of stages grow with, besides single settings
COST_FACTORS = {"group_tasks": group_tasks}
# shares of the region that a mask has at least one parameter of, each with what else switches its stage off by being empty
SPARSITIES = {"combination.methods": "merge.groups"}


def problems(values: dict[str, Any]) -> list[str]:
    """Methods are names of rules, or of a localizer and a share.  Without groups no rules."""
    if not is_on(values, "merge", {}):
        return []
    methods = [name for name in values["combination"].methods if name not in NAMES]
    localized = {name: read[0] for name in methods if (read := read_localized(name))}
    unknown = [name for name in methods if name not in localized]
    known = ", ".join(NAMES)
    return name_problems(values, "combination.methods", [*localized.values()], SHARED) + [
        f"combination.methods: unknown method {name!r}{did_you_mean(name, (*NAMES, *SHARED))}; known: {known}, and "
        "LOCALIZER_SHARE, such as stitch_0.01"
        for name in unknown
    ]
