"""Settings of merged models, and the rules between them and the main pipeline."""

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from skill_grafting.errors import did_you_mean
from skill_grafting.localizers.names import SHARED
from skill_grafting.merging.names import NAMES, read_localized
from skill_grafting.settings import Count, Name, Section, Share, Tasks, Weight
from stages.workflow.core.rules import Choice, Values, is_on, unknown_localizers


class MergeParams(Section):
    groups: dict[Name, Tasks]
    test_max: Count


class AlphaSearch(Section):
    alphas: list[Weight] = Field(min_length=1)
    strictness: list[Weight] = Field(min_length=1)
    dev_max: Count


class VectorShares(Section):
    ties: Share
    dare: Share


class CombinationParams(Section):
    methods: list[Name]
    search: AlphaSearch
    shares: VectorShares


SECTIONS: dict[str, Any] = {"merge": MergeParams, "combination": CombinationParams}
TASKS = (Choice("merge.groups", least=2),)


def problems(values: Values) -> Iterator[str]:
    """Methods are names of rules, or of a localizer and a share.  Without groups no rules."""
    if not is_on(values, "merge", {}):
        return
    methods = [name for name in values["combination"].methods if name not in NAMES]
    localized = {name: read[0] for name in methods if (read := read_localized(name))}
    yield from unknown_localizers(values, "combination.methods", [*localized.values()], SHARED)
    for name in methods:
        if name not in localized:
            yield (
                f"combination.methods: unknown method {name!r}{did_you_mean(name, (*NAMES, *SHARED))}; "
                f"known: {', '.join(NAMES)}, and LOCALIZER_SHARE, such as stitch_0.01"
            )
