"""Merging with weights and shares, DELLA and breadcrumbs, and recipes: what mergekit makes of the same files, but for random draws."""

import copy
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor, nn

import skill_grafting as sg
from skill_grafting.merging.ways import merged_vector
from skill_grafting.patches.__main__ import main
from tests.dvc_project import fenced
from tests.graft_project import refused
from tests.pico import save_causal

METHODS = ("linear", "task_arithmetic", "ties", "dare_ties", "dare_linear", "della", "della_linear", "breadcrumbs", "breadcrumbs_ties")
WEIGHTS, DENSITIES = {"first": 0.7, "second": 0.4, "third": -0.2}, {"first": 0.5, "second": 0.3, "third": 0.6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A causal model as base, and three that moved from it."""
    import transformers

    place = tmp_path_factory.mktemp("models")
    base = transformers.AutoModelForCausalLM.from_pretrained(save_causal(place / "base", "llama"))
    for seed, name in enumerate(WEIGHTS):
        model, generator = copy.deepcopy(base), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
        model.save_pretrained(place / name)
    return place


def recipe(folder: Path, method: str, weights: dict = WEIGHTS, **parameters: object) -> dict:
    models = [{"model": str(folder / name), "parameters": {"weight": weight, "density": DENSITIES[name]}} for name, weight in weights.items()]
    return {"merge_method": method, "base_model": str(folder / "base"), "models": models, "parameters": {"rescale": False, **parameters}}


def graft_merge(asked: dict, to: Path) -> dict[str, Tensor]:
    to.parent.mkdir(exist_ok=True)
    (file := to.with_suffix(".yml")).write_text(yaml.safe_dump(asked))
    main(["merge", str(file), "--to", str(to)])
    return load_file(to / "model.safetensors")


def likelier(chance: Tensor, generator: object = None) -> Tensor:
    """A draw that two programs agree about."""
    return (chance > 0.45).to(chance.dtype)


def by_hand(name: str, folder: Path, method: str, normalize: bool) -> Tensor:
    """The same of one tensor, in a few lines and float64: what stays by sorting, signs by the weighted sum, weights that divide."""
    before, vectors = load_file(folder / "base/model.safetensors")[name].double(), []
    for task, density in DENSITIES.items():
        moved = load_file(folder / task / "model.safetensors")[name].double() - before
        order, size = moved.abs().flatten().sort().indices, moved.numel()
        if method == "ties":
            kept = order[size - max(1, int(density * size)) :]
        elif method.startswith("breadcrumbs"):
            below = max(0, size - int(density * size) - int(0.05 * size))
            kept = order[below : below + int(density * size)]
        elif method.startswith("della"):
            rows = moved.abs().view(len(moved), -1) if moved.dim() > 1 else moved.abs()[None]
            ranks = torch.stack([(row[:, None] > row[None]).sum(1) for row in rows])
            kept = (density + 0.1 * (2 * ranks / (rows.shape[1] - 1) - 1) > 0.45).flatten().nonzero()[:, 0]
        elif method.startswith("dare"):
            kept = order if density > 0.45 else order[:0]
        else:
            kept = order
        vectors.append(WEIGHTS[task] * torch.zeros(size, dtype=torch.float64).index_put((kept,), moved.flatten()[kept]).view_as(moved))
    stack, by = torch.stack(vectors), torch.tensor([*WEIGHTS.values()]).double().view(-1, *[1] * before.dim())
    agree = torch.ones_like(stack, dtype=torch.bool)
    if method in ("ties", "della", "dare_ties", "breadcrumbs_ties"):
        agree = stack.sign() == torch.where(stack.sum(0) >= 0, 1.0, -1.0)
    divisor = (by * agree).sum(0)
    return before + (stack * agree).sum(0) / (divisor.masked_fill(divisor == 0, 1) if normalize else 1)


@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_is_merged_as_its_formula_says(method, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "bernoulli", likelier)
    parameters = {"gamma": 0.05, "epsilon": 0.1, "lambda": 1.0}
    found = graft_merge(recipe(folder, method, **parameters), tmp_path / "merged")
    for name, values in found.items():
        wanted = by_hand(name, folder, method, normalize=method in ("linear", "ties", "della"))
        torch.testing.assert_close(values.double(), wanted, atol=1e-6, rtol=1e-6, msg=name)
    halves = graft_merge(recipe(folder, method, **parameters | {"lambda": 0.5}), tmp_path / "halves")
    assert not all(halves[name].equal(found[name]) for name in found), "control"


@pytest.mark.filterwarnings("ignore")  # of mergekit's own imports
@pytest.mark.parametrize("method", METHODS)
def test_mergekit_makes_the_same_of_a_recipe(method, folder, tmp_path, monkeypatch):
    pytest.importorskip("mergekit", reason="mergekit isn't installed; the test above has its formulas")
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    monkeypatch.setattr(torch, "bernoulli", likelier)
    parameters = {"gamma": 0.05, "epsilon": 0.1} if method[:2] in ("br", "de") else {}
    asked = recipe(folder, method, **parameters)
    if method == "linear":
        asked |= {"parameters": {}, "models": [*asked["models"], {"model": asked["base_model"], "parameters": {"weight": 1.5}}]}
        asked["models"] = [{**one, "parameters": {"weight": one["parameters"]["weight"]}} for one in asked["models"]]
    found = graft_merge(asked, tmp_path / "ours")
    run_merge(MergeConfiguration.model_validate(asked), str(tmp_path / "theirs"), MergeOptions(quiet=True, write_model_card=False))
    theirs = {name: values for file in (tmp_path / "theirs").glob("*.safetensors") for name, values in load_file(file).items()}
    assert theirs.keys() == found.keys()
    for name, values in found.items():
        torch.testing.assert_close(values, theirs[name], atol=1e-6, rtol=1e-5, msg=name)


MISTAKES = {
    "merge_method: 'slerp' is not allowed": {"merge_method": "slerp"},
    "int8_mask": {"parameters": {"int8_mask": True}},
    "slices: unknown setting": {"slices": []},
    "models.0.parameters.weight": {"models": [{"model": "a", "parameters": {"weight": [0, 1]}}]},
    "has none": {"models": [{"model": "a"}]},
    "with a base_model": {"base_model": None},
    "names each model once": {"models": [{"model": "a"}] * 2},
    "density: 2": {"parameters": {"density": 2}},
    "parameters.lamda: unknown setting (did you mean 'lambda'?)": {"parameters": {"lamda": 0.5}},
    "parameters.lambda_: unknown setting (did you mean 'lambda'?)": {"parameters": {"lambda_": 0.5}},
    "models.0.paramters: unknown setting (did you mean 'parameters'?); known: model, parameters": {"models": [{"model": "a", "paramters": {"weight": 1}}]},
    "models.0.parameters.wieght: unknown setting (did you mean 'weight'?)": {"models": [{"model": "a", "parameters": {"wieght": 1}}]},
    "a model beside the base, a": {"base_model": "a", "models": [{"model": "a", "parameters": {"weight": 1}}]},
}


@pytest.mark.parametrize("said", MISTAKES)
def test_what_a_recipe_cannot_say_is_one_line(said, folder, tmp_path, capsys):
    (file := tmp_path / "a.yml").write_text(yaml.safe_dump(recipe(folder, "ties") | MISTAKES[said]))
    line = refused(capsys, "merge", file, "--to", tmp_path / "to")
    assert said in line and not (tmp_path / "to").exists()


def test_other_files_and_types_than_a_recipe_s_are_refused(folder, tmp_path, capsys):
    for text, said in (("a: [", "not valid YAML"), ("- a", "should be a mapping")):
        (tmp_path / "a.yml").write_text(text)
        assert said in refused(capsys, "merge", tmp_path / "a.yml", "--to", tmp_path / "to")
    (tmp_path / "a.yml").write_text(yaml.safe_dump(recipe(folder, "ties") | {"dtype": "bfloat16"}))
    assert "the types of its base (float32)" in refused(capsys, "merge", tmp_path / "a.yml", "--to", tmp_path / "to")
    assert "no such file" in refused(capsys, "merge", tmp_path / "none.yml", "--to", tmp_path / "to")
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path):
        assert "is no regular file" in refused(capsys, "merge", other, "--to", tmp_path / "to")


def test_the_page_runs_as_it_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made: dict = {}
    for language, block in fenced("docs/MERGING.md"):
        if language == "python":
            exec(block, made)
        elif language == "yml":
            Path("recipe.yml").write_text(block)
        else:
            command, *words = block.split()
            assert command == "graft"
            main(words)
    assert_masks_are_the_authors(made)
    merged, base = (load_file(f"{name}/model.safetensors") for name in ("merged", "base"))
    assert merged.keys() == base.keys() and not any(merged[name].equal(base[name]) for name in merged if "norm" not in name)


def assert_masks_are_the_authors(made: dict) -> None:
    """The formula of TALL-masks (`generate_task_masks` of nik-dim/tall_masks): |theta_0 - theta_t| > |theta_mt - theta_t| * lambda."""
    pretrained, *tuned = (torch.cat([weight.detach().flatten() for weight in made[name].parameters()]) for name in ("base", "math", "code"))
    vector = sum(one - pretrained for one in tuned)
    for bits, one in zip(made["bits"].values(), tuned, strict=True):
        theirs = (pretrained - one).abs() > (pretrained + vector - one).abs() * 0.4
        assert 0 < theirs.sum() < len(theirs) and np.array_equal(bits, np.packbits(theirs.numpy()))
    kept = torch.from_numpy(np.unpackbits(made["bits"]["math"], count=len(pretrained)))
    task = sg.graft(made["base"], made["multi"], sg.GraftMask.from_region_indices(made["full"].region, kept.nonzero().flatten()))
    found = torch.cat([weight.detach().flatten() for weight in task.parameters()])
    assert torch.allclose(found, pretrained + kept * vector, atol=1e-6) and len(made["chosen"]) == kept.sum()


# --- The same in Python ------------------------------------------------------------------------------------------------


class Row(nn.Module):
    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=torch.float32), requires_grad=False)


def merged(how: str, *afters: list[float], **options: object) -> list[float]:
    afters = afters or ([1.0], [1.0])
    base, full = Row(*[0.0] * len(afters[0])), sg.GraftMask.full(sg.Region({"w": (len(afters[0]),)}))
    return sg.merge(base, {name: (Row(*values), full) for name, values in zip("abc", afters, strict=False)}, how, **options).w.tolist()


def test_weights_and_shares_are_those_of_each_task():
    assert merged("arithmetic", [1, 0], [0, 1], weights={"a": 2, "b": -1}) == [2, -1]
    assert merged("average", [4.0, 0], [0, 4], weights={"a": 3, "b": 1}) == [3, 1]
    assert merged("arithmetic", [4.0, 0], [0, 4], weights={"a": 3, "b": 1}, normalize=True) == [3, 1]
    assert merged("ties", [4, 1, 2, 3], [1, 4, 3, 2], share={"a": 0.25, "b": 0.5}, weights={"a": 1, "b": 3}) == [4, 4, 3, 0]
    assert merged("ties", [4], [1], weights={"a": 1, "b": 3}, share=1.0) == [1.75], "(4 + 3 * 1) / 4"
    assert merged("ties", [4], [1], weights={"a": 1, "b": 3}, share=1.0, normalize=False) == [7]
    assert merged("consensus", [4], [4], weights={"a": 0.5, "b": 1}) == [6]
    for options, word in (
        ({"weights": {"a": 1}}, "a number for each"), ({"weights": {"a": 1, "b": -1}}, "add up to 0"), ({"how": "mean", "weights": {"a": 1, "b": 1}}, "mean takes none"),
        ({"share": {"a": 0.5, "c": 2}}, "share.c"), ({"per": "row"}, "per"), ({"share": 0.5}, "share: changes nothing here: average takes none; ties, dare"),
        ({"how": "mean", "alpha": 0.5}, "alpha: changes nothing"), ({"how": "ties", "strictness": 1}, "consensus do"), ({"rescale": "no"}, "True or False"),
        ({"how": "breadcrumbs", "gamma": 1}, "below 1"), ({"seed": -1}, "seed"), ({"seed": 0.5}, "seed"), ({"how": "sum", "normalize": False}, "takes none"), ({"gama": 1}, "gama"), ({"how": "della", "share": 0.9}, "epsilon"),
        ({"weights": {"a": float("nan"), "b": 1}}, "finite"),
    ):  # fmt: skip
        with pytest.raises(sg.ParamsError, match=word):
            merged(**{"how": "average", **options})


def test_breadcrumbs_leave_out_outliers_and_what_hardly_moved():
    values = [float(number) for number in range(1, 11)]
    assert merged("breadcrumbs", values, share=0.3, gamma=0.2) == [0, 0, 0, 0, 0, 6, 7, 8, 0, 0]
    assert merged("breadcrumbs", values, share=1.0, gamma=0.2) == values, "a share that leaves no room for outliers is kept"
    assert merged("breadcrumbs", [1.0] * 10, share=0.3, gamma=0.2) == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0], "equals by index"


def test_della_keeps_what_moved_far_more_often_and_the_sum_on_average():
    before, after = {"w": torch.zeros(400, 100)}, {"w": torch.arange(1.0, 101).expand(400, 100).clone()}
    vector = merged_vector("della_linear", before, {"a": after}, 0.5, seed=3)["w"]
    kept = (vector != 0).double().mean(0)
    assert kept[:10].mean() == pytest.approx(0.35 + 0.3 * 4.5 / 99, abs=0.03) and kept[-10:].mean() == pytest.approx(0.65 - 0.3 * 4.5 / 99, abs=0.03)
    assert float(vector.sum() / after["w"].sum()) == pytest.approx(1, abs=0.02)
    assert not merged_vector("della_linear", before, {"a": after}, 0.5, seed=4)["w"].equal(vector), "control"
