"""Patches: through every door a graft is the one of the pipeline, bit for bit, and leaves no trace; what doesn't fit is refused by name."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertOutput, BertSelfOutput

import skill_grafting as sg
from skill_grafting.grafting import apply
from skill_grafting.grafting.apply import transplant, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, write_mask
from skill_grafting.models.loading import CLASSES
from skill_grafting.patches.adapter import common_sparsity
from skill_grafting.patches.card import CARD, card_text, render
from skill_grafting.patches.patch_file import KEY, PATCH, names_of_labels, write_patch
from skill_grafting.support.errors import MaskError, ModelError, StorageError
from tests.graft_project import MASK, ROOT, Project, as_patch, graft, make_project, refused
from tests.pico import change_one_value, random_mask, same, set_config, state
from tests.skill_grafting.test_masks import forge

MODES = [*CLASSES]
BASE, EMBEDDINGS = "models/pretrained", "bert.embeddings.word_embeddings.weight"
INPUTS = torch.tensor([[2, 17, 30, 41, 3], [2, 55, 9, 20, 3]])
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def projects(tmp_path_factory, make_cell) -> dict[str, Project]:
    """For each mode a project with three patches and the models that they make: two of random masks, and one of everything."""
    made = {}
    for mode in MODES:
        made[mode] = project = make_project(tmp_path_factory.mktemp(f"project-{mode}"), make_cell(mode))
        region, stored = project.cell.region, project.mask
        other = random_mask(region, 700, 3)
        values = {name: torch.linspace(-1, 1, len(at)) for name, at in other.indices.items()}
        head = {name: part + 1 for name, part in stored.head.items()}
        second = project.folder / "masks/second"
        write_mask(second, StoredMask(other, values, head, {**stored.about, "seed": 21}))
        masks = {"first": MASK, "second": second, "whole": project.store(Path("masks/whole"), GraftMask.full(region))}
        with pytest.MonkeyPatch.context() as patching:
            patching.chdir(project.folder)
            for name, mask in masks.items():
                graft("apply", as_patch(mask, name), "--base", BASE, "--to", f"{name}-model")
    return made


@pytest.fixture
def standard(projects, monkeypatch) -> Project:
    monkeypatch.chdir(projects["standard"].folder)
    return projects["standard"]


@pytest.fixture
def patch(standard, tmp_path) -> Path:
    return Path(shutil.copytree("first", tmp_path / "patch"))


def load(folder: str | Path, mode: str = "standard", **options: object) -> nn.Module:
    return getattr(transformers, CLASSES[mode]).from_pretrained(folder, **{"dtype": "float32", **options})


def loaded(patch: str | Path) -> sg.Patch:
    return sg.Patch.from_pretrained(patch)


def loading(patch: str | Path, base: str | Path) -> str:
    """The lines of a card and of FORMAT.md that load a patch without this project."""
    return render("loading.py.j2", patch=patch, base=json.dumps(str(base)))


# --- Every door ------------------------------------------------------------------------------------------------------

def elsewhere(script: str, folder: Path) -> str:
    """Run Python where this project can't be imported, with torch, safetensors and transformers."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    (folder / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, "-I", "script.py"], cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("mode", MODES)
def test_a_graft_of_everything_is_the_fine_tuned_model_bit_for_bit_through_every_door(projects, mode, monkeypatch):
    project = projects[mode]
    monkeypatch.chdir(project.folder)
    live, scope = load(BASE, mode), {}
    exec(loading(Path("whole") / PATCH, BASE), scope)
    with loaded("whole").on(live):
        doors = {"swapped": state(live)}
    doors |= {"applied": state(load("whole-model", mode)), "loaded": state(loaded("whole").apply(BASE)), "by hand": scope["weights"]}
    after, before, moved = project.cell.finetuned(), load_file(f"{BASE}/model.safetensors"), project.cell.region.shapes
    for door, found in doors.items():
        assert all(torch.equal(found[name], after[name]) for name in moved), door
        assert all(torch.equal(found[name], values) for name, values in before.items() if name not in moved), door
        assert all(torch.equal(found[name], values) for name, values in project.mask.head.items()), door
    assert any(not torch.equal(before[name], after[name]) for name in moved), "control"


@pytest.mark.parametrize("mode", MODES)
def test_nothing_outside_the_mask_changes_and_a_swap_leaves_no_trace(projects, mode, monkeypatch):
    project = projects[mode]
    monkeypatch.chdir(project.folder)
    model, stored = load(BASE, mode, id2label={0: "x", 1: "y"}), project.mask
    before, config = state(model), model.config.to_dict()
    wanted = {name: state(load(f"{name}-model", mode)) for name in ("first", "second")}
    expected = {**before, **transplant(project.cell.pretrained(), stored.values, stored.mask), **stored.head}
    assert same({name: wanted["first"][name] for name in expected}, expected)
    patches = {name: loaded(name) for name in wanted}
    for name in ("first", "second", "second", "first"):
        with patches[name].on(model) as given:
            assert given is model and same(state(model), wanted[name])
            assert (model.config.id2label == {0: "negative", 1: "positive"}) == (mode == "standard")
        assert same(state(model), before) and model.config.to_dict() == config
    assert not same(wanted["first"], wanted["second"]) and not same(wanted["first"], before), "control"


def test_an_applied_patch_is_an_ordinary_folder_whatever_the_form_of_its_base(patch, standard, pico_bert, tmp_path):
    """The folder that the stage `model` started from has other heads and, for tensors, other names."""
    assert {*load_file(pico_bert / "model.safetensors")} != {*load_file(f"{BASE}/model.safetensors")}
    for given, base, name in ((patch / PATCH, BASE, "file"), (patch, pico_bert, "foreign")):
        graft("apply", given, "--base", base, "--to", tmp_path / name)
        assert (tmp_path / name / "model.safetensors").read_bytes() == Path("first-model/model.safetensors").read_bytes()
    files = {CARD, "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in Path("first-model").iterdir()} == files
    config = json.loads(Path("first-model/config.json").read_text())
    assert config["id2label"] == {"0": "negative", "1": "positive"} and config["label2id"]["positive"] == 1
    assert config["architectures"] == ["BertForSequenceClassification"]
    for folder in (patch, Path("first-model")):
        assert len({path.stat().st_mode for path in folder.iterdir()}) == 1, "who may read the card may read the rest"


# --- On live models --------------------------------------------------------------------------------------------------


def test_nested_swaps_and_an_exception_restore_every_bit(standard):
    model = load(BASE)
    before = state(model)
    with pytest.raises(KeyError), loaded("first").on(model):
        outer = state(model)
        second = loaded("second")  # compared with the model beneath
        with second.on(model):
            inner = state(model)
            with loaded("first").on(model):
                pass
            assert same(state(model), inner)
        assert same(state(model), outer)
        with loaded(Path("second") / PATCH).on(model):
            assert same(state(model), inner)
            raise KeyError
    assert same(state(model), before)
    assert not same(outer, before) and not same(inner, outer)


def test_a_stop_in_the_midst_of_a_swap_restores_every_bit(standard, monkeypatch):
    model = load(BASE)
    before, calls, put_at = state(model), count(), apply.put_at
    with monkeypatch.context() as patching, pytest.raises(RuntimeError, match="stopped"):
        patching.setattr(apply, "put_at", lambda *given: stop() if next(calls) == 3 else put_at(*given))
        with loaded("first").on(model):
            pass
    assert same(state(model), before) and next(calls) > 4
    swaps = [loaded(name).on(model) for name in ("first", "second")]
    for swap in swaps:
        swap.__enter__()
    for swap in swaps:  # the first one in is not the last one out
        with pytest.raises(ModelError, match="in another order than `with` nests them: load the BertForSequenceClassification anew"):
            swap.__exit__(None, None, None)


def stop() -> None:
    raise RuntimeError("stopped")


def test_a_swap_spoils_no_gradient_unseen(standard):
    model = load(BASE)
    with loaded("first").on(model):
        loss = model(INPUTS).logits.sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # of weights that are gone


def test_a_model_is_turned_into_another_dtype_after_its_patch_was_opened(standard):
    model = load(BASE)
    opened = loaded("first")
    opened.require(model)
    before = state(model.to(torch.bfloat16))
    with opened.on(model):
        found = state(model)
    assert same(state(model), before) and not same(found, before)
    assert same(found, state(loaded("first").apply(BASE, dtype="bfloat16")))
    assert same(found, state(load("first-model").to(torch.bfloat16)))
    with pytest.raises(MaskError, match=r"\(\w{12}\): its numbers are rounded: load it in float32, put the patch on, then"):
        loaded("first").require(load(BASE, dtype="bfloat16"))


def test_a_base_model_that_is_in_bfloat16_itself_is_known_in_both_dtypes(projects, tmp_path, monkeypatch):
    shutil.copytree(projects["prompt"].folder / BASE, tmp_path / "base", ignore=shutil.ignore_patterns("SHA*", "anatomy*"))
    monkeypatch.chdir(tmp_path)
    half = load("base", "prompt").to(torch.bfloat16)
    half.float().save_pretrained("base")
    tuned = load("base", "prompt")
    for weight in tuned.parameters():
        weight.data += 0.01
    tuned.save_pretrained("tuned")
    graft("localize", "--base", "base", "--finetuned", "tuned", "--to", "patch", "--sparsity", "0.1")
    model = load("base", "prompt", dtype="bfloat16")
    before = state(model)
    with pytest.warns(UserWarning, match="its values are rounded from torch.float32 to the model's torch.bfloat16"):
        opened = loaded("patch")
        opened.require(model)
    with opened.on(model):
        inside = state(model)
    assert same(inside, state(loaded("patch").apply("base", dtype=torch.bfloat16)))
    assert same(state(model), before) and not same(inside, before), "control"


# --- Damaged, forged and hostile -------------------------------------------------------------------------------------


def forged(change: Callable[[dict, dict], object]) -> Callable[[Path], None]:
    """Changed by somebody who knows how to write the digest anew."""
    return lambda file: forge(file, change)


def flip_bit(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))


def said(**changes: object) -> Callable[[Path], None]:
    return forged(lambda _, header: header[KEY].update(changes))


def config(**changes: object) -> Callable[[Path], None]:
    return forged(lambda _, header: header[KEY]["config"].update(changes))


def head(name: str, *shape: int) -> Callable[[Path], None]:
    return forged(lambda tensors, _: tensors.update({f"head/{name}": torch.zeros(shape)}))


def without(part: str) -> Callable[[Path], None]:
    return forged(lambda tensors, _: [tensors.pop(name) for name in [*tensors] if part in name])


# what damage a mask file may have at all is in test_masks.py
DAMAGED = {
    "one bit": (flip_bit, "is not what was written"),
    "an old patch": (said(version=1), "format version 1 of a patch, this program reads 5"),
    "no labels": (forged(lambda _, header: header[KEY].pop("labels")), "patch.labels"),
    "one label": (said(labels=["score"], config={}), "patch.labels"),
    "notes that are no JSON": (said(notes=[]), "patch.notes"),
    "a mask": (forged(lambda _, header: header.pop(KEY)), "is a mask, not a patch"),
    "no values": (without("values/"), "has no values"),
    "gone": (Path.unlink, "no such mask"),
}
HOSTILE = {
    "fewer layers": (config(num_hidden_layers=1), "patch.config.num_hidden_layers"),
    "code": (config(auto_map={"AutoConfig": "evil.Config"}), "patch.config.auto_map"),
    "a kernel": (config(_attn_implementation="evil/kernel"), "patch.config._attn_implementation"),
    "another class": (said(model_class="AutoModelForQuestionAnswering"), "patch.model_class"),
    "padding of no token": (config(pad_token_id=10**6), "patch.config.pad_token_id is 1000000, and the model has"),
    "embeddings as a head": (head(EMBEDDINGS, 70, 32), "its head is "),
    "a head for three labels": (head("classifier.bias", 3), "its head is "),
    "half a head": (without("head/classifier.bias"), "its head is "),
    "indices with a point": (forged(lambda tensors, _: tensors.update({name: part.float() for name, part in tensors.items() if "indices/" in name})), "one row of whole numbers"),
}


@pytest.mark.parametrize("case", [*DAMAGED, *HOSTILE, "settings of no name", "a file elsewhere"])
def test_a_damaged_or_hostile_patch_is_refused_in_one_line_and_nothing_is_written(patch, case, capsys, tmp_path):
    more = {"settings of no name": (said(generation={"__class__": 1}), "patch.generation"), "a file elsewhere": (said(beside={"../x": {}}), "patch.beside")}
    change, word = (DAMAGED | HOSTILE | more)[case]
    change(patch / PATCH)
    assert word in refused(capsys, "apply", patch, "--base", BASE, "--to", tmp_path / "to")
    model = load(BASE)
    before = state(model)
    with pytest.raises(MaskError), loaded(patch).on(model):
        pass
    assert same(state(model), before)


def test_the_lines_of_the_card_load_a_patch_refuse_others_and_change_nothing_else(patch, standard, tmp_path):
    text = loading(PATCH, "path/to/pico")
    assert FENCE.findall((patch / CARD).read_text(encoding="utf-8"))[1] == text
    page = (ROOT / "docs/FORMAT.md").read_text(encoding="utf-8")
    assert loading("shared/movies/patch.safetensors", BASE) in FENCE.findall(page), "FORMAT.md shows other lines"
    for folder in ("base", "other"):
        shutil.copytree(BASE, tmp_path / folder)
    change_one_value(tmp_path / "other", EMBEDDINGS)
    changes = {"honest": None, "another base": None, "one bit": DAMAGED["one bit"][0]}
    changes |= {case: change for case, (change, _) in HOSTILE.items()}
    for case, change in changes.items():
        shutil.copyfile(patch / PATCH, tmp_path / case)
        if change:
            change(tmp_path / case)
    script = f"""
import importlib.util, torch
assert importlib.util.find_spec("stages") is None
for case in {[*changes]}:
    scope, base = {{}}, "other" if case == "another base" else "base"
    try:
        exec({text!r}.replace({PATCH!r}, case).replace("path/to/pico", base), scope)
    except (AssertionError, KeyError) as error:
        print(case, str(error).partition("\\n")[0], sep=": ")
    else:
        torch.save((scope["model"].state_dict(), scope["model"].config.id2label), f"{{case}}.pt")
"""
    stopped = dict(line.split(": ", 1) for line in elsewhere(script, tmp_path).splitlines())
    assert [*stopped] == [case for case in changes if case != "honest"]
    assert stopped["another base"] == "another base model"
    found, labels = torch.load(tmp_path / "honest.pt")
    assert same(found, load_file("first-model/model.safetensors")) and labels == {0: "negative", 1: "positive"}


def test_a_strangers_text_is_text_in_a_card_and_on_a_terminal(patch, capsys, tmp_path):
    """No tag, link or line of its own in Markdown, the letters as they are in code, no control characters on a terminal."""
    whole = loaded(patch)
    changes = {"title": "<script>\n# Free", "labels": ["<img src=x>", "R&D [a](b)"], "base": "R&D_a", "notes": {"a": "```\n\u202e"}}
    changes["config"] = whole.use.config | names_of_labels(changes["labels"])
    whole.use = whole.use.model_copy(update=changes)
    card = card_text(whole, "peft")
    assert '"a": "```\\n\\u202e"' in card and "\n```\n\n## Use" in card, "notes end where they should"
    parts = card.replace('"```', '"').partition("\n---\n")[2].split("```")
    prose, code = "".join(parts[::2]), "".join(parts[1::2])
    assert r"1 R&D \[a\](b)" in prose and r"&lt;script>\\n# Free" in prose and not re.search(r"<(?!/?code>)\w", prose)
    assert "'R&D [a](b)'" in code and '"path/to/R&D_a"' in code
    whole.stored = replace(whole.stored, mask=replace(whole.mask, record={"method": "\x1b[2J\u202e"}))
    write_patch(tmp_path / "odd.safetensors", whole)
    graft("inspect", tmp_path / "odd.safetensors")
    assert "\\u001b[2J\\u202e" in capsys.readouterr().out


# --- Other models ----------------------------------------------------------------------------------------------------

WEIGHT = "bert.encoder.layer.1.output.dense.weight"
OTHER_FOLDERS = [
    (lambda base: change_one_value(base, WEIGHT), rf"was made for pico .*, not for the model in .*: it was made for another state(; 1 of its 39 tensors differs .{WEIGHT}.)?$"),
    (lambda base: change_one_value(base, EMBEDDINGS), "it was made for another state"),
    (lambda base: (base / "model.safetensors").unlink(), "model.safetensors missing"),
    (lambda base: set_config(base, auto_map={"AutoConfig": "evil.Config"}), "auto_map names code that comes with the model"),
    (lambda base: set_config(base, _attn_implementation="evil/kernel"), "names a kernel of the hub"),
]
OTHER_MODELS = [
    (lambda projects: load(projects["prompt"].folder / BASE, "prompt"), r"not for this BertForMaskedLM: bert.pooler.dense.bias is \[32\] there and none here"),
    (lambda projects: load(BASE, num_hidden_layers=1), r"layer.1.attention.output.LayerNorm.bias is \[32\] there and none here"),
    (lambda projects: load(BASE).to("meta"), "has no values in memory .it is on meta.: load the model whole"),
    (lambda projects: nn.Linear(2, 2), r"not for this Linear: bert.* is \[.*\] there and none here"),
]


@pytest.mark.parametrize(("change", "words"), OTHER_FOLDERS)
def test_another_base_s_folder_is_refused_by_name(standard, change, words, capsys, tmp_path):
    base = Path(shutil.copytree(BASE, tmp_path / "base"))
    change(base)
    with pytest.raises(sg.GraftError, match=words):
        loaded("first").apply(base)
    assert re.search(words, refused(capsys, "apply", "first", "--base", base, "--to", tmp_path / "to"))


@pytest.mark.parametrize(("make", "words"), OTHER_MODELS)
def test_other_models_are_refused_by_name(standard, projects, make, words):
    with pytest.raises(sg.GraftError, match=words):
        loaded("first").require(make(projects))


# --- The hub ---------------------------------------------------------------------------------------------------------


def test_what_can_t_be_had_from_or_put_onto_the_hub_is_one_line(standard, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("owner/name", "owner/na me", "owner/--"):
        with pytest.raises(MaskError, match=f"{name}: no folder, and not on the hub: it is not in the cache"):
            loaded(name)
        with pytest.raises(StorageError, match=f"{name}: could not be uploaded to the hub: "):
            loaded("first").push_to_hub(name)


def test_a_patch_and_its_card_are_uploaded(standard, monkeypatch):
    calls = []
    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", lambda _, name, **options: calls.append((name, options)) or SimpleNamespace(repo_id=name))

    def upload(_: object, *, repo_id: str, folder_path: str, **options: str) -> str:
        calls.append((repo_id, options, {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}))
        return f"https://hub/{repo_id}/commit"

    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", upload)
    assert loaded("first").push_to_hub("me/movies", private=True, commit_message="one") == "https://hub/me/movies/commit"
    assert calls[0] == ("me/movies", {"private": True, "exist_ok": True}) and calls[1][:2] == ("me/movies", {"commit_message": "one"})
    assert calls[1][2] == {path.name: path.read_bytes() for path in Path("first").iterdir()}


# --- Adapters --------------------------------------------------------------------------------------------------------


def export(capsys, *words: object) -> str:
    capsys.readouterr()
    graft("export", *words, "--base", BASE)
    return capsys.readouterr().out


def store_part(project: Project, path: Path, keep: Callable[[str], bool]) -> Path:
    """The mask in some of its tensors."""
    indices = {name: at for name, at in project.mask.mask.indices.items() if keep(name)}
    mask = GraftMask(project.mask.mask.region, indices)
    write_mask(path, replace(project.mask, mask=mask, values=values_at(project.cell.finetuned(), mask)))
    return path


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's own
@pytest.mark.parametrize("mode", ["standard", "autoregressive"])
def test_peft_loads_what_an_adapter_holds_whole(projects, mode, tmp_path, monkeypatch, capsys):
    from peft import PeftModel

    monkeypatch.chdir(projects[mode].folder)
    kept = store_part(projects[mode], tmp_path / "mask", lambda name: "bias" not in name or "Norm" in name)
    line = export(capsys, as_patch(kept, tmp_path / "patch"), "--to", tmp_path / "adapter")
    assert "values in" in line and "norms whole" in line and "left out" not in line
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {CARD, "adapter_config.json", "adapter_model.safetensors"}
    wanted = loaded(tmp_path / "patch").apply(BASE)
    base = load(BASE, mode, **({"num_labels": 2} if mode == "standard" else {}))
    model = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    with torch.inference_mode():
        found, known, bare = model(INPUTS).logits, wanted(INPUTS).logits, load(BASE, mode)(INPUTS).logits
    assert torch.allclose(found, known, rtol=0, atol=1e-5)
    assert not torch.allclose(bare, known, rtol=0, atol=1e-2), "control"
    merged = state(model.merge_and_unload())
    gaps = {name: float((merged[name] - values).abs().max()) for name, values in state(wanted).items()}
    assert max(gaps.values()) == 0 or ("but for" in line and max(gaps.values()) < 1e-7)


def test_what_an_adapter_can_t_hold_is_refused_with_its_count_or_left_out(standard, tmp_path, monkeypatch, capsys):
    at, to = standard.mask.mask.indices, tmp_path / "to"
    count = sum(len(at[name]) for name in at if name.endswith("bias") and "Norm" not in name)
    line = refused(capsys, "export", "first", "--base", BASE, "--to", to)
    assert count and line.startswith(f"a peft adapter, which holds linear weights and norms, can't hold {count} of 400 values (of ")
    assert "bias, ...); --leave-out (in Python leave_out=True) leaves these" in line
    assert f"left out: {count} of 400 values\n" in export(capsys, "first", "--leave-out", "--to", to)
    assert f"left out: {count} of 400" in (to / CARD).read_text()
    norms = as_patch(store_part(standard, tmp_path / "norms", lambda name: "Norm" in name), tmp_path / "no linear")
    assert "selects nothing in the weights of linear" in refused(capsys, "export", norms, "--base", BASE, "--to", tmp_path / "no")

    def forward(self, hidden: Tensor, before: Tensor) -> Tensor:  # reads a weight without calling its layer
        return self.LayerNorm(torch.nn.functional.linear(hidden, self.dense.weight, self.dense.bias) + before)

    patch = as_patch(store_part(standard, tmp_path / "mask", lambda name: "output.dense.weight" in name), tmp_path / "patch")
    export(capsys, patch, "--to", tmp_path / "control")
    for kind in (BertOutput, BertSelfOutput):
        monkeypatch.setattr(kind, "forward", forward)
    line = refused(capsys, "export", patch, "--base", BASE, "--to", tmp_path / "no")
    assert "a peft adapter would not be the graft: the logits of this model differ by " in line


def test_every_layer_gets_the_places_it_needs():
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        sizes = torch.randint(1, 10**7, (6,), generator=generator).tolist()
        needed = [int(torch.randint(1, size + 1, (1,), generator=generator)) for size in sizes]
        sparsity = common_sparsity([*zip(needed, sizes, strict=True)])
        places = [int(size * (1 - sparsity)) for size in sizes]
        assert 0 <= sparsity < 1 and all(there >= need for there, need in zip(places, needed, strict=True))
        assert any(there == need for there, need in zip(places, needed, strict=True)), "no more than it takes"
