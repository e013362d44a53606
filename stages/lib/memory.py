"""Memory of this process that is its own: what the system can't take back as it can the pages of a mapped file."""

from pathlib import Path

STATUS = Path("/proc/self/status")
OWN = ("RssAnon:", "RssShmem:")


def own_memory() -> int:
    """Bytes that are resident and no part of a mapped file; all that are resident where the system doesn't tell them apart."""
    if STATUS.is_file():
        found = [int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(OWN)]
        if len(found) == len(OWN):
            return 1024 * sum(found)
    import psutil

    return psutil.Process().memory_info().rss


class PeakMemory:
    """The most that was seen whenever it was looked."""

    def __init__(self) -> None:
        self.bytes = own_memory()

    def look(self) -> None:
        """See how much there is now."""
        self.bytes = max(self.bytes, own_memory())
