"""python -m tests.chaos [KILLS]: a small run is killed at random moments, and ends in the bytes of one that nobody disturbed.

Each time DVC is made to forget some stages of a finished copy, and `dvc repro`, the runner, or a stage of theirs is killed (-9) until
one start comes to its end.  A killed stage starts anew.  Then every output has its MD5 of before, and nothing is still at work.
"""

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import psutil
from ruamel.yaml import YAML

from tests.dvc_project import RUNNER, TINY, Copy, clone, make_original, wait_for

STARTS = {"stage": ("dvc", "repro"), "dvc": ("dvc", "repro"), "runner": RUNNER}
PAUSES = {"stage": 5.0, "dvc": 14.0, "runner": 20.0}  # seconds, at most, from a start to a kill


def outputs(copy: Copy) -> dict[str, str]:
    """Every output with its MD5."""
    return {out["path"]: out["md5"] for entry in copy.lock().values() for out in entry["outs"]}


def stages_at_work(copy: Copy) -> list[psutil.Process]:
    """Processes of stages, by themselves or as forks of the runner."""
    servers = {one.pid for one in copy.at_work("forkserver")}
    forks = [one for one in copy.at_work("forkserver") if one.ppid() in servers]
    return forks + [one for one in copy.at_work("-m stages.") if "workflow" not in " ".join(one.cmdline())]


def forget(copy: Copy, chance: random.Random) -> None:
    """Have DVC know of no run of four stages."""
    shutil.rmtree(copy.folder / ".dvc/cache/runs", ignore_errors=True)
    lock = YAML(typ="safe").load(copy.folder / "dvc.lock")
    for name in chance.sample(sorted(lock["stages"]), 4):
        del lock["stages"][name]
    YAML().dump(lock, copy.folder / "dvc.lock")


def killed(copy: Copy, who: str, chance: random.Random) -> bool:
    """Start it and kill it, or a stage of it; False if it came to its end before."""
    process = copy.start(*STARTS[who])
    if who == "stage":
        wait_for(lambda: stages_at_work(copy) or process.poll() is not None)
    time.sleep(chance.uniform(0.0, PAUSES[who]))
    found = stages_at_work(copy) if who == "stage" else [process]
    if process.poll() is not None or not found:
        copy.end(process)
        return False
    found[0].kill()
    process.wait(600)
    wait_for(lambda: not stages_at_work(copy), 60)
    return True


def main(kills: int) -> None:
    """Kill so often, and compare after each start that came to its end."""
    chance, done = random.Random(0), 0
    with tempfile.TemporaryDirectory() as folder:
        copy = clone(make_original(Path(folder), TINY), "chaos")
        copy.run(*RUNNER)
        before = outputs(copy)
        while done < kills:
            forget(copy, chance)
            while done < kills and killed(copy, who := chance.choice([*STARTS]), chance):
                done += 1
                print(f"kill {done} of {kills}: {who}", flush=True)
                copy.run("python", "-m", "stages.workflow.plan")  # sets a dvc.lock aside that was cut short
            copy.repro()
            assert outputs(copy) == before
    print(f"{done} kills, and the same bytes each time")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 30)
