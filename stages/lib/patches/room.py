"""Whether localizing will find the memory that it takes."""

from math import prod

from ..errors import ParamsError
from ..graft.region import Region
from ..localizers.settings import ARRAYS

GIBIBYTE = 2**30
FLOAT = 4
# bytes of a weight of a live model, by its type
WIDTHS = {"float32": 4, "bfloat16": 2}
# Python with its libraries, and a batch
BESIDE = 1.0 * GIBIBYTE
# copies in float32 of the tensor that is looked at: before, after, their difference, its gradient, the score
COPIES = 5
# bytes of a candidate: score and index, of up to twice as many as are wanted, and once more while the best are chosen
CANDIDATE = 48


def require_room(localizer: str, width: int, parameters: int, region: Region, k: int) -> None:
    """Raise ParamsError if a localizer takes more memory than is free (bytes_needed)."""
    import psutil

    free = psutil.virtual_memory().available
    if (needed := bytes_needed(localizer, width, parameters, region, k)) <= free:
        return
    # what takes a model only beside another that does, and never the one that was asked for
    others = [("grown", width)] * (width > 0) + [("movement", 0)]
    cheaper = [
        f"; {name} takes {less / GIBIBYTE:.1f}" + " and no --data" * (width > theirs)
        for name, theirs in others
        if name != localizer and (less := bytes_needed(name, theirs, parameters, region, k)) <= free
    ]
    raise ParamsError(
        f"--localizer: {localizer} takes about {needed / GIBIBYTE:.1f} GiB of memory for {region.size:,} graftable "
        f"parameters, and {free / GIBIBYTE:.1f} are free{''.join(cheaper[:1])}"
    )


def bytes_needed(localizer: str, width: int, parameters: int, region: Region, k: int) -> float:
    """Memory beside mapped files, about, to find k parameters of a region.

    A live model of so many parameters, each of `width` bytes (0: there is none); the localizer's arrays of the region's size;
    copies of one tensor at a time, and candidates.
    """
    largest = max(map(prod, region.shapes.values()))
    arrays = FLOAT * (ARRAYS.get(localizer, 0) * region.size + COPIES * largest)
    return BESIDE + width * parameters + arrays + CANDIDATE * k
