"""Paths of all artefacts; no other module knows them.

All paths are relative to the project's top folder, where DVC runs every stage.  The same places
stand in dvc.yaml (a test compares them).
"""

from pathlib import Path

PARAMS = Path("params.yaml")
PROFILES = Path("stages/profiles")
PIPELINE = Path("dvc.yaml")
PIPELINES = Path("stages")

TABLES = Path("data/tables")
SAMPLES = Path("data/sample")
PRETRAINED = Path("models/pretrained")
FINETUNED = Path("models/finetuned")
JOINT = Path("models/joint")
MASKS = Path("masks")
METRICS = Path("metrics")
PLOTS = Path("plots")
# stages whose last axis, the size of a mask, lies inside the folder of a seed
SIZED = ("sweep", "readout", "skill")
LEAKAGE = TABLES / "leakage.json"
PAGE = METRICS / "report.html"
DURATIONS = Path(".dvc/tmp/durations.jsonl")


def table(task: str) -> Path:
    """All rows of a data set, one JSON object a line: split, sentence1, sentence2, label."""
    return TABLES / task / "table.jsonl"


def card(task: str) -> Path:
    """The description of a data set: its resolved task definition, counts and source."""
    return TABLES / task / "card.json"


def ood_table(task: str, test_set: str) -> Path:
    """Test rows of another data set, with the labels of `task`."""
    return TABLES / task / "ood" / f"{test_set}.jsonl"


def sample(task: str, seed: int, split: str) -> Path:
    """The k-shot rows of one split (train, dev or test)."""
    return SAMPLES / str(seed) / task / f"{split}.jsonl"


def finetuned(task: str, seed: int) -> Path:
    """Fine-tuned model of a cell, an ordinary Hugging Face folder."""
    return FINETUNED / str(seed) / task


def folder(stage: str, seed: int, *axes: str, top: Path = METRICS) -> Path:
    """What a stage made of one seed, all its tasks, at one point of its further axes; one run makes all sizes of SIZED."""
    *before, size = [*axes, ""] if stage not in SIZED else axes
    return top.joinpath(stage, *before, str(seed), size)


def mask(stage: str, task: str, seed: int, *axes: str) -> Path:
    """Mask of a cell, with the values that it selects; `learned` by the stage mask.  A size stands as in params.yaml."""
    return folder(stage, seed, *axes, top=MASKS) / f"{task}.safetensors"


def logits(stage: str, task: str, seed: int, *axes: str) -> Path:
    """Logits that a stage stored."""
    return folder(stage, seed, *axes) / f"{task}.safetensors"


def record(stage: str, task: str, seed: int, *axes: str) -> Path:
    """Scores that a stage derived from its logits, with what they are about."""
    return folder(stage, seed, *axes) / f"{task}.json"


def report(pipeline: str) -> Path:
    """The few numbers of a pipeline that `dvc metrics` shows, `summary` for the main one; `.md` beside it has the tables."""
    return METRICS / f"{pipeline}.json"


def report_plots(pipeline: str) -> Path:
    """Folder of that report's figures and of the data behind them."""
    return PLOTS if pipeline == "summary" else PLOTS / pipeline


def joint(paradigm: str, seed: int) -> Path:
    """Joint model of a seed, fine-tuned in one way on several tasks: an ordinary folder, and the tasks' heads."""
    return JOINT / paradigm / str(seed)
