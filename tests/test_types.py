"""What a type checker says of a notebook's lines: nothing of those that are right, and one line of each typo."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
START = """import torch
import transformers
import skill_grafting as sg

load = transformers.AutoModelForSequenceClassification.from_pretrained
base: transformers.BertForSequenceClassification = load("base")
tuned: transformers.BertForSequenceClassification = load("tuned")
inputs, labels = torch.ones(4, 8, dtype=torch.long), torch.tensor([0, 1, 0, 1])


def loss(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(inputs).logits, labels)


mask = sg.localize(base, tuned, sparsity=0.01)
"""
# the lines of ten scripts; in the last five one has a typo, with what is wrong with it
RIGHT = {
    "localize": """
learned = sg.localize(base, tuned, sparsity=0.01, method="learned", loss=loss, steps=20, learning_rate=0.1, heads="classifier")
print(learned.sparsity, (mask | learned).by_module(depth=3), mask.overlap(learned), mask.indices["a"].sum())
model = sg.graft(base, tuned, learned)
print(model.config.hidden_size, model.num_labels)
""",
    "curve": """
masks = sg.localize(base, tuned, sparsity=[0.001, 0.01])
table = sg.curve(base, tuned, masks, lambda model: float(loss(model)))
sg.plot_curve(table)
print(masks[0.01].selected, table.head())
error: float = sg.calibration_error(base(inputs).logits, labels, bins=10)
""",
    "patch": """
patch = sg.Patch.of(base, tuned, mask, title="reviews", notes={"prompt": "{text}"})
patch.save_pretrained("shared/reviews")
with sg.Patch.from_pretrained("shared/reviews").on(base) as live:
    print(live.config.hidden_size, sg.active(live))
same = patch.apply(base)
print(same.config.hidden_size)
""",
    "merge": """
merged = sg.merge(base, {"a": (tuned, mask), "b": (tuned, ~mask)}, how="mean")
print(merged.config.hidden_size)
optimizer = sg.masked_optimizer(base, mask, torch.optim.AdamW, lr=1e-3)
optimizer.zero_grad()
loss(base).backward()
optimizer.step()
""",
    "diff": """
step = sg.diff(base, tuned, title="step 1")
step.put_on(base)
found = sg.mask_of({name: weight.abs() for name, weight in base.named_parameters()}, 0.05, per="tensor")
print(len(found), sg.Patch.edit(base, found, lambda values, name: values / 2).mask.selected)
try:
    sg.read_pair("base", "tuned")
except (sg.ModelError, sg.GraftError) as error:
    print(error)
""",
}
WRONG = {
    "localize": ('sparsity=0.01, method="learned"', 'sparsity=0.01, methd="learned"', "methd"),
    "curve": ("masks[0.01].selected", "masks[0.01].selekted", "selekted"),
    "patch": ("sg.Patch.from_pretrained", "sg.Patch.from_pretraned", "from_pretraned"),
    "merge": ("optimizer = sg.masked_optimizer(base, mask, torch.optim.AdamW", "optimizer = sg.masked_optimizer(base, torch.optim.AdamW", "masked_optimizer"),
    "diff": ('0.05, per="tensor"', '0.05, per="tensors"', "tensors"),
}  # fmt: skip


def write_scripts(folder: Path) -> None:
    """The ten scripts as files, NAME_right.py and NAME_wrong.py."""
    for name, lines in RIGHT.items():
        right, typo, _ = WRONG[name]
        assert lines.count(right) == 1
        (folder / f"{name}_right.py").write_text(START + lines, encoding="utf-8")
        (folder / f"{name}_wrong.py").write_text(START + lines.replace(right, typo), encoding="utf-8")


# a minute, as mypy reads torch and transformers
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_finds_each_typo_and_nothing_else(tmp_path):
    pytest.importorskip("mypy", reason="`make test-all` installs it")
    write_scripts(tmp_path)
    options = ["--cache-dir", str(tmp_path / "cache"), "--ignore-missing-imports", "--follow-imports", "silent"]
    files = sorted(map(str, tmp_path.glob("*.py")))
    environment = os.environ | {"MYPYPATH": str(ROOT / "stages")}
    ran = subprocess.run([sys.executable, "-m", "mypy", *options, *files], env=environment, capture_output=True, text=True, check=False)
    said = re.findall(r"(\w+)_(right|wrong)\.py:\d+: error: (.*)", ran.stdout)
    assert {(name, kind) for name, kind, _ in said} == {(name, "wrong") for name in WRONG}, ran.stdout + ran.stderr
    assert all(any(word in words for one, _, words in said if one == name) for name, (*_, word) in WRONG.items()), said
