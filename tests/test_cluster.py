"""A cluster on this machine: a scheduler and workers in clones of their own, which share results by a folder as DVC's remote."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname as host

import psutil
import pytest

from stages.workflow.core import paths
from tests.dvc_project import TINY, Copy, clone, make_original, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TARGET = "models/finetuned/13/movies"


class Cluster:
    """Clones, with the processes of Dask that were started in them."""

    def __init__(self, folder: Path) -> None:
        original = make_original(folder, TINY | {"ood": {"sets": {}, "test_max": 60}})
        self.serial = clone(original, "serial")
        original.run("dvc", "remote", "add", "-d", "store", str(folder / "remote"))
        original.commit()
        self.head, self.one, self.two = (clone(original, name) for name in ("head", "one", "two"))
        self._address = folder / "scheduler.json"
        place = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
        words = ("-m", "dask", "scheduler", *place, "--scheduler-file", str(self._address))
        self._started = [original.start(sys.executable, *words)]
        wait_for(self._address.is_file)

    @property
    def address(self) -> str:
        return json.loads(self._address.read_text())["address"]

    def work(self, copy: Copy, **more: str) -> psutil.Process:
        """Start a worker; the process that watches over it."""
        offers = ["--nthreads", "1", "--resources", "MEMORY=4000", "--dashboard-address", "127.0.0.1:0"]
        self._started.append(copy.start(sys.executable, "-m", "dask", "worker", self.address, *offers, **more))
        return psutil.Process(self._started[-1].pid)

    def works(self, copy: Copy) -> bool:
        """True if processes have started in this clone that haven't ended."""
        return any(one.info["cwd"] == str(copy.folder) for one in psutil.process_iter(["cwd"]))

    def command(self, workers: int) -> list[str]:
        words = ["--scheduler", self.address, "--workers", str(workers)]
        return [sys.executable, "-m", "stages.commands.parallel", *words]

    def end(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.wait(60)


def kill(process: psutil.Process) -> None:
    """All at once, as when a machine goes: the worker, and the process that would start it again, but not what they run."""
    workers = [child for child in process.children() if "spawn_main" in " ".join(child.cmdline())]
    assert workers
    for one in [process, *workers]:
        one.kill()


def runs(copy: Copy) -> list[str]:
    """Stages that have run in this clone."""
    notes = copy.folder / paths.DURATIONS
    return [json.loads(line)["stage"] for line in notes.read_text().splitlines()] if notes.exists() else []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()


def test_a_stage_of_a_killed_worker_runs_again_and_the_bytes_are_those_of_a_serial_run(cluster, tmp_path):
    head, one, two = cluster.head, cluster.one, cluster.two
    marker = tmp_path / "marker"
    first = cluster.work(one, TEST_TARGET=TARGET, TEST_MARKER=str(marker))  # holds the stage up for minutes
    run = head.start(*cluster.command(1))
    wait_for(lambda: marker.is_file() and marker.read_text())
    held = psutil.Process(int(marker.read_text()))
    assert held.cwd() == str(one.folder)
    cluster.work(two)
    kill(first)
    wait_for(lambda: not held.is_running() or held.status() == psutil.STATUS_ZOMBIE, seconds=30)
    assert run.wait(1700) == 0
    told = head.folder.with_suffix(".txt").read_text()
    assert told.rstrip().endswith("finds nothing more to do")
    assert "done finetune@movies-13" in told and "done summary" not in told
    # all came from the run cache, but for the report, which has none
    assert "ran here" not in told and runs(head) == ["summary"]
    assert "finetune@movies-13" in {*runs(two)} - {*runs(one)} and "model" in {*runs(one)} - {*runs(two)}

    cluster.serial.repro()
    assert head.lock() == cluster.serial.lock()
    places = ("data/sample", "models/finetuned", "masks", "metrics", "plots")
    assert head.files(*places) == cluster.serial.files(*places) != {}
    assert head.repro().executed == []


def test_two_workers_share_the_work_and_one_that_is_otherwise_is_refused(cluster):
    head, one, two = cluster.head, cluster.one, cluster.two
    again = cluster.work(one)
    if not cluster.works(two):
        cluster.work(two)
    set_all(cluster, "graft.sparsity=0.02")
    before = {copy.folder: runs(copy) for copy in (one, two)}
    assert head.run(*cluster.command(2)).text.rstrip().endswith("finds nothing more to do")
    assert all(len(runs(copy)) > len(before[copy.folder]) for copy in (one, two))
    assert {*runs(head)} == {"summary"}

    head.set("graft.sparsity=0.03")
    refused = head.run(*cluster.command(2), fails=True)
    otherwise = "refused: graft.sparsity is 0.02 in its params.yaml, 0.03 in the head's"
    plan, *told = refused.text.splitlines()
    assert refused.code == 2 and "5 stages to run" in plan
    assert told == [
        f"parallel: worker in {host()}:{one.folder} {otherwise}",
        f"worker in {host()}:{two.folder} {otherwise}",
    ]
    set_all(cluster, "graft.sparsity=0.03")
    one.run("git", "commit", "-q", "--allow-empty", "-m", "elsewhere")
    refused = head.run(*cluster.command(2), fails=True)
    assert refused.code == 2 and f"{one.folder} refused: it is at commit" in refused.text
    assert len(refused.text.splitlines()) == 2, "the plan, and a line of the one that is elsewhere"

    again.terminate()
    again.wait(60)
    # Python's own tracker of shared memory ends a moment after the worker that started it
    wait_for(lambda: not cluster.works(one), seconds=30)


def set_all(cluster: Cluster, setting: str) -> None:
    for copy in (cluster.head, cluster.one, cluster.two):
        copy.set(setting)
