"""Whether localizing will find the memory that it takes."""

from ..errors import ParamsError
from ..graft.region import Region
from ..localizers.settings import ARRAYS
from .pair import Pair

GIBIBYTE = 2**30
FLOAT = 4
# Python with its libraries, a batch, and what is made of one tensor at a time
BESIDE = 1.0 * GIBIBYTE


def require_room(localizer: str, live: bool, pair: Pair, region: Region) -> None:
    """Raise ParamsError if a localizer takes more than what is free: a model if it is `live`, and arrays of the region's size."""
    import psutil

    free = psutil.virtual_memory().available
    if (needed := bytes_needed(localizer, live, pair, region)) > free:
        raise ParamsError(
            f"--localizer: {localizer} takes about {needed / GIBIBYTE:.1f} GiB of memory for {region.size:,} graftable "
            f"parameters, and {free / GIBIBYTE:.1f} are free{_cheaper(localizer, live, pair, region, free)}"
        )


def bytes_needed(localizer: str, live: bool, pair: Pair, region: Region) -> float:
    """Memory beside mapped files, about; live weights are in float32."""
    numbers = live * pair.anatomy.parameters + ARRAYS.get(localizer, 0) * region.size
    return BESIDE + FLOAT * numbers


def _cheaper(localizer: str, live: bool, pair: Pair, region: Region, free: float) -> str:
    for name, with_model in (("grown", True), ("movement", False)):
        needed = bytes_needed(name, with_model, pair, region)
        if name != localizer and with_model <= live and needed <= free:
            return f"; {name} takes {needed / GIBIBYTE:.1f}" + " and no --data" * (live and not with_model)
    return ""
