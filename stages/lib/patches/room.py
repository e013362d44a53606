"""The memory that localizing takes: foreseen and held against what there is, and measured."""

from math import prod
from pathlib import Path

from ..errors import ParamsError
from ..grafting.region import Region
from ..localizers.registry import localizer_of
from ..models.anatomy import ModelSpec

GIBIBYTE = 2**30
FLOAT = 4
# bytes of a weight of a live model, by its type
WIDTHS = {"float32": 4, "bfloat16": 2}
# Python with its libraries
BESIDE = 0.5 * GIBIBYTE
# copies in float32 of the tensor that is looked at: before, after, their difference, its gradient, the score
COPIES = 5
# gradients that are added up at once where one batch doesn't hold all rows, in numbers: 256 MiB in float32
MOST = 2**26
# bytes of a candidate: score and index, of up to twice as many as are wanted, and once more while the best are chosen
CANDIDATE = 48
STATUS = Path("/proc/self/status")
OWN = ("RssAnon:", "RssShmem:")


def require_room(localizer: str, width: int, tokens: int, anatomy: ModelSpec, region: Region, k: int) -> None:
    """Raise ParamsError if a localizer takes more memory than is free (bytes_needed)."""
    import psutil

    free = psutil.virtual_memory().available
    if (needed := bytes_needed(localizer, width, tokens, anatomy, region, k)) <= free:
        return
    # what takes a model only beside another that does, and never the one that was asked for
    others = [("grown", width)] * (width > 0) + [("movement", 0)]
    cheaper = [
        f"; {name} takes {less / GIBIBYTE:.1f}" + " and no --data" * (width > theirs)
        for name, theirs in others
        if name != localizer and (less := bytes_needed(name, theirs, tokens, anatomy, region, k)) <= free
    ]
    raise ParamsError(
        f"--localizer: {localizer} takes about {needed / GIBIBYTE:.1f} GiB of memory for {region.size:,} graftable "
        f"parameters, and {free / GIBIBYTE:.1f} are free{''.join(cheaper[:1])}"
    )


def bytes_needed(localizer: str, width: int, tokens: int, anatomy: ModelSpec, region: Region, k: int) -> float:
    """Memory beside mapped files, about, to find k parameters of a region.

    A live model, each of its weights of `width` bytes (0: there is none), with what goes into and comes out of its matrices for
    a batch of so many tokens, and gradients; the localizer's arrays of the region's size; copies of one tensor at a time, and
    candidates.
    """
    matrices = [shape for shape in region.shapes.values() if len(shape) == 2]
    live = anatomy.parameters + tokens * sum(map(sum, matrices))
    numbers = COPIES * max(map(prod, region.shapes.values())) + max(map(prod, anatomy.shapes.values()))
    numbers += localizer_of(localizer).arrays * region.size + (min(MOST, region.size) if width else 0)
    return BESIDE + width * live + FLOAT * numbers + CANDIDATE * k


def own_memory() -> int:
    """Bytes that are resident and no part of a mapped file, whose pages the system can take back.

    All that are resident where the system doesn't tell them apart.
    """
    if STATUS.is_file():
        found = [int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(OWN)]
        if len(found) == len(OWN):
            return 1024 * sum(found)
    import psutil

    return psutil.Process().memory_info().rss


class PeakMemory:
    """The most of this process's own memory (own_memory) that was seen whenever it was looked."""

    def __init__(self) -> None:
        self.bytes = own_memory()

    def look(self) -> None:
        """See how much there is now."""
        self.bytes = max(self.bytes, own_memory())
