"""The one module that knows where artefacts live; everything else asks here.

All paths are relative to the project's top folder, where DVC runs every stage.  The same places
stand in dvc.yaml (a test compares them).
"""

from pathlib import Path

PARAMS = Path("params.yaml")
PROFILES = Path("stages/profiles")

TABLES = Path("data/tables")
SAMPLES = Path("data/sample")
PRETRAINED = Path("models/pretrained")
FINETUNED = Path("models/finetuned")
MOVEMENT = Path("masks/movement")
LEARNED = Path("masks/learned")
METRICS = Path("metrics")
PLOTS = Path("plots")
SUMMARY = METRICS / "summary.json"
LEAKAGE = TABLES / "leakage.json"


def table(task: str) -> Path:
    """All rows of a data set, one JSON object a line: split, sentence1, sentence2, label."""
    return TABLES / task / "table.jsonl"


def card(task: str) -> Path:
    """What a data set is: its resolved task definition, counts and source."""
    return TABLES / task / "card.json"


def ood_table(task: str, test_set: str) -> Path:
    """Test rows of another data set, with the labels of `task`."""
    return TABLES / task / "ood" / f"{test_set}.jsonl"


def sample(task: str, seed: int, split: str) -> Path:
    """The k-shot rows of one split (train, dev or test)."""
    return SAMPLES / task / str(seed) / f"{split}.jsonl"


def sample_dir(task: str, seed: int) -> Path:
    """Folder of the k-shot splits of a cell."""
    return SAMPLES / task / str(seed)


def finetuned(task: str, seed: int) -> Path:
    """Fine-tuned model of a cell, an ordinary Hugging Face folder."""
    return FINETUNED / task / str(seed)


def movement(task: str, seed: int) -> Path:
    """Parameters of a cell in the order of their movement."""
    return MOVEMENT / task / f"{seed}.safetensors"


def learned(task: str, seed: int) -> Path:
    """Learned mask of a cell, with the fine-tuned values it selects."""
    return LEARNED / task / f"{seed}.safetensors"


def predictions(stage: str, task: str, seed: int) -> Path:
    """Logits that `stage` (reference or evaluate) stored for a cell."""
    return METRICS / stage / task / f"{seed}.safetensors"


def scores(stage: str, task: str, seed: int) -> Path:
    """Numbers that `stage` (calibration or ood) derived from the predictions of a cell."""
    return METRICS / stage / task / f"{seed}.json"
