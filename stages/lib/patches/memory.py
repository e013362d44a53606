"""The memory of this process beside mapped files: its peak, and a warning where the checkpoints are larger than what is free."""

import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

GIBIBYTE = 2**30
STATUS = Path("/proc/self/status")
OWN = ("RssAnon:", "RssShmem:")


def warn_of_size(files: Iterable[Path]) -> None:
    """Say on stderr if the files of a model that is loaded whole are larger than the memory that is free."""
    size, free = sum(file.stat().st_size for file in files), psutil.virtual_memory().available
    if size > free:
        print(
            f"warning: the fine-tuned weights take {size / GIBIBYTE:.1f} GiB on disk, {free / GIBIBYTE:.1f} GiB of memory are "
            "free, and with --data all of them are loaded; movement without --data reads one tensor at a time",
            file=sys.stderr,
        )


def own_memory() -> int:
    """Bytes that are resident and no part of a mapped file, whose pages the system can take back.

    All that are resident where the system doesn't tell them apart.
    """
    if STATUS.is_file():
        found = [int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(OWN)]
        if len(found) == len(OWN):
            return 1024 * sum(found)
    return psutil.Process().memory_info().rss


class PeakMemory:
    """The most of this process's own memory (own_memory) that was seen whenever it was looked."""

    def __init__(self) -> None:
        self.bytes = own_memory()

    def look(self) -> None:
        """See how much there is now."""
        self.bytes = max(self.bytes, own_memory())
