"""The API on plain modules of seven architectures: exact grafts, masks like the pipeline's, and what papers define, recomputed."""

import ast
import copy
import dataclasses
import inspect
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from operator import and_, or_, sub
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
import torch
import transformers as t
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim.swa_utils import AveragedModel

import skill_grafting as sg
from skill_grafting.calibration import reliability
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region, unwrapped
from skill_grafting.localizers.registry import NAMES, kind_of
from skill_grafting.merging import arithmetic, ways
from skill_grafting.merging.arithmetic import shifted, task_vector
from skill_grafting.merging.stitching import RULES
from skill_grafting.support.errors import DataError, GraftError, MaskError, ModelError, ParamsError, TrainingError
from stages.text.models.fisher import squared_gradients
from stages.text.models.label_model import LabelModel
from stages.text.models.objective import draws, objective_of
from stages.text.models.predicting import loss_of
from stages.text.tasks.runtime import permuted
from stages.workflow.cells.cells import GraftCell
from tests.pico import localizer_settings, same, small_config, state

Case = tuple[nn.Module, nn.Module, Callable[[nn.Module], Tensor]]
IMAGES, IDS = torch.linspace(-1, 1, 6 * 3 * 32 * 32).sin().view(6, 3, 32, 32), torch.arange(60).view(6, 10) * 7 % 90 + 3
LABELS = torch.arange(6) % 3


class Tied(nn.Module):
    """A language model whose head is its embedding, by no class of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body, self.out = nn.Embedding(100, 16), nn.Linear(16, 16), nn.Linear(16, 100, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.body(self.embedding(ids)).tanh())


def sequential() -> nn.Sequential:
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    return nn.Sequential(*layers)


def cross_entropy(model: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(model(IMAGES), LABELS)


RESNET = {"hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 3}
VIT = {"image_size": 32, "patch_size": 8, "num_labels": 3}
MADE: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "resnet": (lambda: t.ResNetForImageClassification(small_config("resnet", **RESNET)), lambda m: m(pixel_values=IMAGES, labels=LABELS).loss),
    "vit": (lambda: t.ViTForImageClassification(small_config("vit", **VIT)), lambda m: m(pixel_values=IMAGES, labels=LABELS).loss),
    "t5": (
        lambda: t.T5ForConditionalGeneration(small_config("t5", decoder_start_token_id=0)),
        lambda m: m(input_ids=IDS, labels=IDS[:, :4].contiguous()).loss,
    ),
    "gpt2": (
        lambda: t.GPT2LMHeadModel(small_config("gpt2")),
        lambda m: nn.functional.cross_entropy(m(input_ids=IDS).logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()),
    ),
    "bert": (lambda: t.BertForSequenceClassification(small_config("bert", num_labels=3)), lambda m: m(input_ids=IDS, labels=LABELS).loss),
    "tied": (Tied, lambda m: nn.functional.cross_entropy(m(IDS).flatten(0, 1), IDS.flatten())),
    "sequential": (sequential, cross_entropy),
}


def fine_tuned(base: nn.Module, seed: int = 1) -> nn.Module:
    """A copy in which a third of the parameters moved, and the statistics of BatchNorm did."""
    tuned, generator = copy.deepcopy(base), torch.Generator().manual_seed(seed)
    for values in [*tuned.parameters(), *(values for values in tuned.buffers() if values.is_floating_point())]:
        moved = torch.rand(values.shape, generator=generator) < 0.3
        values.data += 0.05 * torch.rand(values.shape, generator=generator) * moved
    return tuned


@pytest.fixture(params=MADE)
def case(request) -> Case:
    make, loss = MADE[request.param]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = make().eval()
    return base, fine_tuned(base), loss


def small() -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """Two small networks, inputs and labels."""
    generator = torch.Generator().manual_seed(5)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        base = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    tuned, inputs = copy.deepcopy(base), torch.randn(24, 6, generator=generator).double()
    for values in tuned.parameters():
        values.data += 0.5 * torch.randn(values.shape, generator=generator)
    return base, tuned, inputs, tuned(inputs).argmax(1)


# --- Grafts ------------------------------------------------------------------------------------------------------


def test_everything_is_the_fine_tuned_model_and_nothing_the_base_bit_for_bit(case):
    base, tuned, loss = case
    mask = sg.localize(base, tuned, sparsity=1.0, parameters="all")
    assert mask.selected == mask.region.size == sum(mask.by_module().values()) > 0
    assert same(state(sg.graft(base, tuned, mask)), state(tuned))
    nothing = state(sg.graft(base, tuned, sg.GraftMask.empty(mask.region)))
    assert all(torch.equal(nothing[name], base.state_dict()[name]) for name in mask.region.shapes)
    whole = {name for name, values in tuned.state_dict().items() if torch.equal(nothing[name], values)}
    others = nothing.keys() - mask.region.shapes.keys() - {"out.weight", "lm_head.weight"}
    assert {name for name in others if not name.endswith("embed_tokens.weight")} <= whole, "heads and buffers travel whole"
    part, before = sg.localize(base, tuned, sparsity=0.01), state(base)
    wanted = sg.graft(base, tuned, part)
    with sg.grafted(base, tuned, part) as model:
        assert model is base and same(state(base), state(wanted)) and loss(base).item() == loss(wanted).item()
        assert not same(state(base), before), "control"
    assert same(state(base), before)


@pytest.mark.parametrize("method", ["learned", "grown", "talos"])
def test_gradients_find_a_mask_of_any_architecture(case, method):
    base, tuned, loss = case
    before = state(base), state(tuned)
    options = {"steps": 3} if method == "learned" else {}
    mask = sg.localize(base, tuned, sparsity=0.01, method=method, loss=lambda model, _: loss(model), batches=[0], **options)
    assert mask.selected == int(0.01 * mask.region.size)
    assert same(state(base), before[0]) and same(state(tuned), before[1])
    assert all(weight.requires_grad and weight.grad is None for weight in base.parameters())


def test_weights_that_are_not_contiguous():
    base = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    base[0].weight = nn.Parameter(torch.randn(6, 4).t())
    tuned, mask = fine_tuned(base), None
    assert not tuned[0].weight.is_contiguous()
    plain = [copy.deepcopy(model) for model in (base, tuned)]
    for model in plain:
        model[0].weight = nn.Parameter(model[0].weight.detach().contiguous())
    for method in ("movement", "learned", "grown", "talos"):
        options = {"sparsity": 0.2, "method": method, "loss": lambda m, row: m(row).square().mean(), "batches": torch.eye(6).split(1)}
        mask = sg.localize(base, tuned, **options)
        assert mask.equals(sg.localize(*plain, **options))
    with sg.grafted(base, tuned, mask):
        assert same(state(base), state(sg.graft(*plain, mask)))


# --- What the pipeline and papers say ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", NAMES)
def test_the_masks_are_those_of_the_pipeline(make_cell, method):
    cell, words, one_by_one = make_cell("prompt"), ("mask", "toy", 0), method in ("fish", "talos")
    opened, known = GraftCell.of(cell.load(), 0, ["layers"], cell.pretrained_folder), cell.load()
    base, tuned = (t.AutoModelForMaskedLM.from_pretrained(folder).eval() for folder in (cell.pretrained_folder, cell.finetuned_folder))
    settings, examples = localizer_settings(method, batch_size=64, mode="empirical"), opened.model.encode(cell.rows["train"])
    objective = objective_of(opened.model, opened.region.shapes, cell.rows["train"], words=words)
    wanted = opened.masks(settings, [0.02], "sparsity", objective, draws(*words))[0.02]
    changes = {name: value for name, value in settings.model_dump().items() if name not in ("mode", "draws", "batch_size", "select", "eval_steps")}
    singles = [[example] for example in permuted(examples, "fisher", *words)]

    def loss(model: nn.Module, batch: list) -> Tensor:
        seen = LabelModel(model, known.tokenizer, known.task, known.mode, known.max_length, known.runtime)
        return loss_of(seen, known.batch(batch), "sum") / len(batch)

    found = sg.localize(
        base, tuned, sparsity=0.02, method=method, seed=draws(*words), parameters=opened.region.shapes.__contains__, loss=loss,
        batches=singles if one_by_one else [sorted(examples, key=lambda example: len(example.input_ids))], **changes,
    )  # fmt: skip
    # squares of single examples are the same up to rounding
    assert found.overlap(wanted) > 0.98 if one_by_one else found == wanted


@pytest.mark.parametrize("mode", ["empirical", "expected"])
def test_fisher_is_the_pipelines(make_cell, mode):
    cell = make_cell("standard")
    model, places = cell.load(), [*cell.region.shapes]
    examples = model.encode(cell.rows["train"][:6])

    def losses(_: nn.Module, example: object) -> Tensor:
        surprise = -torch.log_softmax(model.logits(model.batch([example])), 1)[0]
        return surprise[example.label] if mode == "empirical" else surprise * (-surprise.detach() / 2).exp()

    found = sg.fisher(model.model, losses, examples, places)
    wanted = squared_gradients(model, examples, places, mode)
    rounding = 1e-8 * max(float(values.max()) for values in wanted.values())
    for name, values in wanted.items():
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=rounding, msg=name)


def test_fish_and_talos_are_their_papers_definitions():
    base, tuned, inputs, labels = small()
    rows = [*zip(inputs.split(1), labels.split(1), strict=True)]

    def loss(model: nn.Module, row: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(row[0]), row[1])

    def squares(model: nn.Module) -> Tensor:
        total = 0
        for row in rows[:10]:
            model.zero_grad()
            loss(model, row).backward()
            total += torch.cat([weight.grad.flatten() ** 2 for weight in model.parameters()])
        return total

    options = {"sparsity": 0.2, "loss": loss, "batches": rows, "examples": 10}
    fish = sg.localize(base, tuned, method="fish", **options)
    k = fish.selected
    assert fish.region_indices().tolist() == squares(copy.deepcopy(base)).topk(k).indices.sort().values.tolist()
    live, size = copy.deepcopy(base), fish.region.size
    alive, rounds, rho = torch.ones(size, dtype=bool), 3, 0.1
    for number in range(1, rounds + 1):
        start = 0
        for weight, kept in zip(live.parameters(), base.parameters(), strict=True):
            inside = alive[start : start + weight.numel()].view(weight.shape)
            weight.data.copy_(torch.where(inside, kept, rho * kept))
            start += weight.numel()
        keep = k if number == rounds else int(0.2 ** (number / rounds) * size)
        scores = squares(live).masked_fill(~alive, torch.inf)
        alive = torch.zeros_like(alive).index_fill_(0, scores.topk(keep, largest=False).indices, True)
    talos = sg.localize(base, tuned, method="talos", rounds=rounds, attenuation=rho, **options)
    assert talos.region_indices().tolist() == alive.nonzero().flatten().tolist()
    assert not talos.equals(sg.localize(base, tuned, method="talos", rounds=1, **options)), "control: rounds count"


def test_merging_is_that_of_the_pipeline():
    base, *_ = small()
    models = {task: fine_tuned(base, seed) for seed, task in enumerate("abc", start=2)}
    masks = {task: sg.localize(base, model, sparsity=0.4, parameters="*") for task, model in models.items()}
    tasks = {task: (models[task], masks[task]) for task in models}
    pretrained = {name: values.detach() for name, values in base.named_parameters()}
    after = {task: dict(sg.graft(base, *tasks[task]).named_parameters()) for task in tasks}
    total = ways.summed(pretrained, after)
    both = arithmetic.agreed([arithmetic.tall_mask(task_vector(pretrained, model), total, 0.4) for model in after.values()])
    wanted = {
        ways.AVERAGE: shifted(pretrained, total, 1 / 3),
        ways.ARITHMETIC: shifted(pretrained, total),
        "sum": shifted(pretrained, total),
        ways.TIES: shifted(pretrained, ways.merged_vector(ways.TIES, pretrained, after)),
        ways.DARE: shifted(pretrained, ways.merged_vector(ways.DARE, pretrained, after)),
        ways.CONSENSUS: shifted(pretrained, arithmetic.within(total, both)),
    }
    for how, tensors in wanted.items():
        assert same({name: one.detach() for name, one in sg.merge(base, tasks, how).named_parameters()}, tensors), how
    alone = {"a": (models["a"], masks["a"])}
    assert all(same(state(sg.merge(base, alone, rule)), state(sg.graft(base, *tasks["a"]))) for rule in RULES)


def merged_x(before: list, afters: list[list], how: str, **options: object) -> Tensor:
    """x merged of models in which it is these values."""
    models = [nn.ParameterDict({"x": nn.Parameter(torch.as_tensor(x), requires_grad=False)}) for x in (before, *afters)]
    mask = GraftMask.full(Region({"x": tuple(models[0]["x"].shape)}))
    return sg.merge(models[0], {str(n): (model, mask) for n, model in enumerate(models[1:])}, how, **options)["x"]


@pytest.mark.parametrize(("how", "wanted"), [
    ("mean", [2 + 1j, 5]), ("average", [2 + 1j, 5]), ("arithmetic", [3 + 2j, 9]), ("sum", [3 + 2j, 9]), ("largest", [2 + 1j, 6 + 0j]),
])  # fmt: skip
def test_complex_numbers_are_merged_as_such(how, wanted):
    found = merged_x([1 + 0j, 1 + 0j], [[2 + 1j, 6 + 0j], [2 + 1j, 4 + 0j]], how)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=found.dtype))
    assert merged_x([1 + 0j], [[2 + 1j]], "dare", share=1.0).tolist() == [2 + 1j]


def test_whole_numbers_are_merged_exactly_and_what_a_type_cannot_hold_is_refused():
    big = 2**60
    assert merged_x([big + 1, 7], [[big + 4, 7], [big + 6, 9]], "mean").tolist() == [big + 5, 8]
    assert merged_x([big + 1, 7], [[big + 4, 7], [big + 6, 9]], "arithmetic").tolist() == [big + 9, 9]
    half = torch.tensor([0.0], dtype=torch.float16)
    for how in ("arithmetic", "sum"):
        with pytest.raises(GraftError, match=f"x: the {how} of these grafts is more than torch.float16 holds"):
            merged_x(half, [half + 60000, half + 60000], how)
    least, most = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    for how in ("mean", "sum", "arithmetic", "average"):
        with pytest.raises(GraftError, match="whole numbers come to more than torch.int64 holds"):
            merged_x([least], [[most], [most]], how)
    assert merged_x([least], [[most], [5]], "largest").tolist() == [most]
    with pytest.raises(GraftError, match="x: ties elects signs, and complex numbers have none"):
        merged_x([1 + 0j], [[2 + 1j]], "ties")


def test_calibration_is_equation_6():
    logits, labels = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    wanted = reliability(logits.numpy(), labels.numpy(), 15).ece
    assert sg.calibration_error(logits, labels) == sg.calibration_error(logits.tolist(), labels.tolist()) == wanted > 0
    assert sg.calibration_error(logits, labels, np.int64(15)) == wanted
    assert sg.calibration_error([[9.0, 0.0], [0.0, 9.0]], [0, 1]) < 1e-3


def test_a_head_that_is_named_travels_whole_and_one_that_is_not_is_told(caplog):
    base, tuned = (Any_(cls_head=nn.Linear(4, 2)) for _ in range(2))
    mask = sg.localize(base, tuned, sparsity=0.5, heads="cls_head.*")
    assert [*mask.region.shapes] == ["body.weight", "body.bias"] and not caplog.records
    assert torch.equal(sg.graft(base, tuned, mask).cls_head.weight, tuned.cls_head.weight)
    assert {*sg.Patch.of(base, tuned, mask).head} == {"cls_head.weight", "cls_head.bias"}
    for made in (~mask, mask | ~mask, mask & mask, mask - ~mask):
        assert torch.equal(sg.graft(base, tuned, made).cls_head.weight, tuned.cls_head.weight)
    table = sg.curve(base, tuned, {0.5: mask}, lambda model: model.cls_head.weight.sum().item()).set_index("model").score
    assert table["whole_region"] == table["grafted"] == table["finetuned"] != table["pretrained"]
    assert mask == sg.localize(base, tuned, sparsity=0.5, heads="cls_head") == sg.localize(base, tuned, sparsity=0.5, parameters="body")
    tuned.cls_head = nn.Linear(4, 5)
    assert sg.graft(base, tuned, sg.localize(base, tuned, sparsity=0.5, heads="cls_head")).cls_head.weight.shape == (5, 4)
    with pytest.raises(GraftError, match=r"cls_head.weight is \[2, 4\] of torch.float32 in the base, \[5, 4\]"):
        sg.localize(base, tuned, sparsity=0.5)
    tuned.cls_head = nn.Linear(4, 2)
    assert "cls_head.weight" in sg.localize(base, tuned, sparsity=0.5).region.shapes, "control"
    assert "the last layer, cls_head, moved and is grafted like all others" in caplog.text


def test_several_sizes_dev_functions_and_the_curve():
    base, tuned, inputs, labels = small()
    loss = lambda model: nn.functional.cross_entropy(model(inputs), labels)  # noqa: E731
    accuracy = lambda model: float((model(inputs).argmax(1) == labels).double().mean())  # noqa: E731
    masks = sg.localize(base, tuned, sparsity=[0.1, 0.5], parameters="all")
    assert [*masks] == [0.1, 0.5] and all(mask == sg.localize(base, tuned, sparsity=size, parameters="all") for size, mask in masks.items())
    table = sg.curve(base, tuned, masks, accuracy)
    assert [*table.model] == ["pretrained", "finetuned", "grafted", "grafted", "whole_region"] and table.score.iloc[[1, 4]].tolist() == [1, 1]
    assert sg.plot_curve(table).get_xscale() == "log"
    options = {"sparsity": 0.3, "method": "learned", "loss": loss, "steps": 6, "eval_steps": 1, "parameters": "all"}
    record = sg.localize(base, tuned, dev=accuracy, **options).record
    scores = [entry["score"] for entry in record["history"] if "score" in entry]
    assert record["method"] == "learned" and record["settings"]["steps"] == 6 and scores[record["step"] - 1] == max(scores)
    assert record["loss"][0] == pytest.approx(record["history"][0]["whole_loss"]) and record["loss"][1] < record["loss"][0]
    rank = lambda given, k: torch.arange(k)  # noqa: E731
    sg.register("first", rank)
    first = sg.localize(base, tuned, sparsity=0.1, method="first", parameters="all")
    assert first == sg.localize(base, tuned, sparsity=0.1, method=rank, parameters="all") and first.region_indices().tolist() == [*range(8)]
    assert {"first", "learned"} <= {*sg.methods().index}

    def steepest(given, k):
        given.put(given.pretrained)
        given.full_gradient()
        return given.region.flatten({name: weight.grad for name, weight in given.weights.items()}).abs().topk(k).indices.numpy()

    loss(base).backward()
    wanted = torch.cat([weight.grad.reshape(-1) for weight in base.parameters()]).abs().topk(8).indices.sort().values
    assert sg.localize(base, tuned, sparsity=0.1, method=steepest, loss=loss, parameters="all").region_indices().equal(wanted)


def test_what_moved_outside_of_the_region_is_recorded_told_and_warned_of(caplog):
    base, tuned = two_of(Tied)
    score = lambda model: -float((model(IDS) - tuned(IDS)).square().mean().detach())  # noqa: E731
    squares = {name: (weight - base.get_parameter(name)).detach().double().square().sum().item() for name, weight in tuned.named_parameters()}
    told = {"share": pytest.approx(squares["embedding.weight"] / sum(squares.values())), "tensors": 1, "most": "embedding.weight"}
    for parameters, wanted in ((None, told), ("body", told), ("all", None)):
        caplog.clear()
        mask = sg.localize(base, tuned, sparsity=0.5, parameters=parameters)
        assert ("outside of the region, most of it in embedding.weight, and in no graft; parameters='all' takes it in" in caplog.text) == (parameters is None)
        assert mask.record.get("left_out") == wanted
        sg.curve(base, tuned, {0.5: mask}, score)
        assert ("something outside of it matters: " in caplog.text) == (parameters != "all"), "control: all of it lacks nothing"


def test_within_one_autocast_gradients_and_scores_are_of_the_weights_as_they_are(monkeypatch):
    base, tuned, inputs, labels = small()
    base, tuned, cast = base.float(), tuned.float(), partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    loss = lambda model: nn.functional.cross_entropy(model(inputs.float()), labels)  # noqa: E731

    def inside(model: nn.Module) -> Tensor:
        with cast():
            return loss(model)

    def found(loss: Callable) -> list:
        dev = lambda model: -float(loss(model).detach())  # noqa: E731
        options = {"sparsity": 0.2, "loss": loss, "parameters": "all"}
        masks = [sg.localize(base, tuned, method=method, **options) for method in ("attribution", "grown")]
        masks.append(sg.localize(base, tuned, method="learned", steps=5, dev=dev, **options))
        return [*masks, *sg.curve(base, tuned, {0.2: masks[0]}, dev).score]

    wanted = found(inside)
    with cast():
        assert found(loss) == wanted
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: None)
    with cast():
        assert found(loss) != wanted, "control: with casts of the weights before"


def test_options_of_localize_are_typed_as_methods_take_them():
    """So that editors and type checkers tell a typo."""
    tree = ast.parse(Path("stages/skill_grafting/__init__.pyi").read_text(encoding="utf-8"))
    typed = {node.name: {part.target.id: ast.unparse(part.annotation) for part in node.body if isinstance(part, ast.AnnAssign)} for node in tree.body if isinstance(node, ast.ClassDef)}
    fields = {name: field for method in NAMES for name, field in kind_of(method).model_fields.items()}
    assert typed["_Settings"].keys() == fields.keys()
    for name, field in fields.items():
        wanted = field.annotation if get_origin(field.annotation) is Literal else type(field.default)
        assert typed["_Settings"][name].partition("[")[0] == (wanted.__name__ if isinstance(wanted, type) else "Literal")
        assert get_origin(wanted) is not Literal or [*get_args(wanted)] == ast.literal_eval(typed["_Settings"][name].removeprefix("Literal"))
    assert [*typed["_Options"], "settings"] == [*inspect.signature(sg.localize).parameters][3:]
    asked = {*inspect.signature(sg.merge).parameters} - {"base", "tasks", "how", "to", "settings"}
    assert {*typed["_Merging"]} == asked | ({field.name for field in dataclasses.fields(ways.Settings)} - {"how"})
    [named] = (ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "_How")
    assert {*ast.literal_eval(named.removeprefix("Literal"))} == {*RULES, *ways.WAYS}


class Cached(nn.Module):
    """A body, and a cache that is made anew with every input."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(3, 3), nn.Linear(3, 2)
        self.register_buffer("rows", torch.arange(6.0).reshape(2, 3), persistent=False)
        self.register_buffer("later", None)

    def forward(self, inputs: Tensor) -> Tensor:
        self.rows = torch.cat([self.rows, inputs])
        self.later = inputs
        return self.out(self.body(self.rows))


INSIDE: dict[str, Callable[[nn.Module], object]] = {
    "a buffer grew": lambda model: model(torch.ones(2, 3)),
    "a buffer went": lambda model: delattr(model, "rows"),
    "a buffer has other memory": lambda model: setattr(model.rows, "data", torch.zeros(5, 3, dtype=torch.float64)),
    "weights were loaded in place of the old": lambda model: model.load_state_dict({k: v * 1 for k, v in model.state_dict().items()}, assign=True),
    "a weight was replaced": lambda model: setattr(model.body, "weight", nn.Parameter(model.body.weight.detach() * 1)),
    "a layer was replaced": lambda model: setattr(model, "body", copy.deepcopy(model.body)),
    "a weight has other memory": lambda model: setattr(model.body.weight, "data", torch.zeros(1, 9)),
}


@pytest.mark.parametrize("what", INSIDE)
def test_whatever_happens_inside_is_put_back_and_the_caller_s_own_error_leaves(what):
    base, tuned = Cached(), Cached()
    mask, body, weight = sg.localize(base, tuned, sparsity=1.0), base.body, base.body.weight
    before = {**state(base), "rows": base.rows.clone()}
    for error in (None, KeyError("own")):
        try:
            with sg.grafted(base, tuned, mask) as model:
                INSIDE[what](model)
                assert not same({**state(base), "rows": getattr(base, "rows", torch.ones(1))}, before), "control"
                if error:
                    raise error
        except KeyError as caught:
            assert caught is error
        assert same({**state(base), "rows": base.rows}, before) and base.later is None
        assert base.body is body and base.body.weight is weight


def test_a_model_that_is_turned_inside_stays_turned_and_pruned_layers_stay_pruned():
    base, tuned = Cached(), Cached()
    mask = sg.localize(base, tuned, sparsity=1.0, parameters="all")
    wanted = copy.deepcopy(base).to(torch.bfloat16)
    with sg.grafted(base, tuned, mask):
        base.to(torch.bfloat16)
    assert same(state(base), state(wanted)) and torch.equal(base.rows, wanted.rows)
    with sg.grafted(tuned, Cached(), mask):
        prune.l1_unstructured(tuned.body, "weight", amount=0.5)
    assert {"body.weight_orig", "body.weight_mask"} <= state(tuned).keys() and tuned(torch.ones(1, 3)).shape == (3, 2)


# --- Anything that is a module ------------------------------------------------------------------------------------


class Any_(nn.Module):
    """A body and whatever a test puts beside it."""

    def __init__(self, **more: object) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs)


def two_of(make: Callable[[], nn.Module], move: bool = True) -> tuple[nn.Module, nn.Module]:
    """The same module twice, the second one moved."""
    made = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            made.append(make().eval())
    with torch.no_grad():
        for number, weight in enumerate(made[1].parameters() if move else ()):
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number), dtype=weight.dtype)
    return made[0], made[1]


class Growing(nn.Module):
    """A table of its own that grows with its inputs, as rotary positions have it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.register_buffer("table", torch.arange(4.0)[:, None] / 8, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) > len(self.table):
            self.table = torch.arange(float(len(inputs)))[:, None] / 8
        return self.body(inputs + self.table[: len(inputs)])


class Scaled(nn.Linear):
    """A linear layer with a factor that only `get_extra_state` knows of."""

    _factor = 1.0

    def get_extra_state(self) -> dict:
        return {"factor": self._factor}

    def set_extra_state(self, state: dict) -> None:
        self._factor = state["factor"]

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self._factor


def computed(how: Callable[[nn.Module], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        how(model[0])
        return model

    return make


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("make", [
    Growing,
    computed(nn.utils.weight_norm), computed(nn.utils.spectral_norm), computed(nn.utils.parametrizations.weight_norm),
    computed(lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5)),
    lambda: nn.Sequential(Scaled(8, 3)),
], ids=["growing", "weight_norm", "spectral_norm", "parametrized", "pruned", "scaled"])  # fmt: skip
def test_a_graft_of_everything_is_the_fine_tuned_model_and_both_grafts_are_one(make):
    base, tuned = two_of(make)
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    tuned(inputs.repeat(3, 1)), base(inputs.repeat(2, 1)).sum().backward()  # tables that grow, and gradients
    if isinstance(tuned, nn.Sequential) and isinstance(tuned[0], Scaled):
        tuned[0]._factor = 3.0
    mask = sg.localize(base, tuned, sparsity=1.0)
    part = sg.localize(base, tuned, sparsity=0.3)
    with torch.no_grad():
        wanted, before = tuned(inputs), base(inputs)
        assert torch.equal(sg.graft(base, tuned, mask)(inputs), wanted) and not torch.equal(wanted, before)
        grafts = {one: sg.graft(base, tuned, one)(inputs) for one in (mask, part)}
        for one in grafts:
            with sg.grafted(base, tuned, one):
                assert torch.equal(base(inputs), grafts[one])
            assert torch.equal(base(inputs), before)


def shared() -> nn.Module:
    model = Any_(a=nn.Linear(2, 2, bias=False), b=nn.Linear(2, 2, bias=False))
    model.b.weight.data = model.a.weight.data
    return model


def halves() -> nn.Module:
    """Two parameters in one storage that have no number in common."""
    both = torch.randn(4, 2)
    return Any_(left=nn.Parameter(both[:, :1]), right=nn.Parameter(both[:, 1:]))


class Packed(nn.Linear):
    """A layer that saves weights which are no parameter, as quantised ones do."""

    packed = 0.0

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}packed"] = torch.tensor(type(self).packed)


class Repacked(Packed):
    packed = 1.0


Repacked.__name__ = "Packed"


def adapted() -> nn.Module:
    import peft

    made = peft.get_peft_model(Any_(), peft.LoraConfig(r=2, target_modules=["body"], init_lora_weights=False))
    return made.eval()


def otherwise(act: Callable[[nn.Module], object], make: Callable[[], nn.Module] = Any_) -> Callable[[], tuple]:
    """A pair of which the fine-tuned one is changed."""

    def pair() -> tuple[nn.Module, nn.Module]:
        base, tuned = two_of(make)
        act(tuned)
        return base, tuned

    return pair


def test_what_changes_no_output_in_eval_mode_is_no_other_state():
    base, tuned = two_of(lambda: Any_(drop=nn.Dropout(0.1), dropout=0.1, gradient_checkpointing=False, calls=0))
    tuned.drop, tuned.dropout, tuned.gradient_checkpointing, tuned.calls = nn.Identity(), 0.3, True, 5
    assert sg.graft(base, tuned, sg.localize(base, tuned, sparsity=0.5)).dropout == 0.1
    base, tuned = two_of(halves)
    mask = sg.localize(base, tuned, sparsity=1.0)
    with sg.grafted(base, tuned, mask):
        assert same(state(base), state(tuned)), "halves of one storage are no shared memory"


@pytest.mark.parametrize("wrap", [nn.DataParallel, AveragedModel, partial(torch.compile, backend="eager")], ids=["parallel", "averaged", "compiled"])
def test_wrapped_models_are_taken(wrap):
    base, tuned = two_of(lambda: Any_(norm=nn.BatchNorm1d(8)))
    tuned.norm.running_mean += 1
    mask = sg.localize(base, tuned, sparsity=0.3)
    for pair in ((wrap(base), tuned), (base, wrap(tuned)), (wrap(base), wrap(tuned))):
        wanted = sg.graft(base, tuned, mask)
        assert sg.localize(*pair, sparsity=0.3) == mask and same(state(sg.graft(*pair, mask)), state(wanted))
        with sg.grafted(*pair, mask) as given:
            assert given is pair[0] and same(state(unwrapped(given)), state(wanted))
        with sg.Patch.of(*pair, mask).on(pair[0]) as given:
            assert given is pair[0] and same(state(unwrapped(given)), state(wanted))


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_scripted_models_are_grafted_in_place_and_come_back():
    base, tuned = (torch.jit.script(model) for model in two_of(lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))))
    loss = lambda model: model(torch.eye(8)).square().mean()  # noqa: E731
    mask, before = sg.localize(base, tuned, sparsity=1.0, parameters="all", method="grown", loss=loss), state(base)
    with sg.grafted(base, tuned, mask):
        assert same(state(base), state(tuned)) and not same(state(base), before)
    assert same(state(base), before)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", ["as such", "in float32"])
def test_rounding_is_no_movement_whatever_the_type_that_it_is_stored_in(kind, stored):
    base, tuned = two_of(lambda: nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)), move=False)
    places = torch.tensor([3, 100, 700])
    with torch.no_grad():
        tuned[0].weight.view(-1)[places] += 0.5
    tuned = tuned.to(kind) if stored == "as such" else tuned.to(kind).float()
    mask = sg.localize(base, tuned, sparsity=3 / 1024)
    assert {*mask.region.shapes} == {"0.weight"} and mask.indices["0.weight"].tolist() == places.tolist()
    made = sg.graft(base, tuned, mask)[0].weight.view(-1)
    assert torch.equal(made[places], tuned[0].weight.view(-1)[places].float()) and int((made != base[0].weight.view(-1)).sum()) == 3
    wide = copy.deepcopy(base)
    with torch.no_grad():
        wide[0].weight.view(-1)[places] += 0.5
        wide[1].weight += 1e-4 * torch.randn(32, 32)
    assert {*sg.localize(base, wide, sparsity=0.1).region.shapes} == {"0.weight", "1.weight"}, "control: small movement counts"


def test_models_made_or_used_in_inference_mode_are_as_others():
    with torch.inference_mode():
        inside = two_of(Any_)
    outside = two_of(Any_)
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    wanted = sg.fisher(outside[0], lambda m, i: m(inputs[i]).square().sum(), range(3))
    for pair in (inside, outside):
        for used_in in (False, True):
            with torch.inference_mode(used_in):
                mask = sg.localize(*pair, sparsity=0.3)
                assert mask == sg.localize(*outside, sparsity=0.3)
                before, graft = state(pair[0]), sg.graft(*pair, mask)
                with sg.grafted(*pair, mask):
                    assert same(state(pair[0]), state(graft))
                with sg.Patch.of(*pair, mask).on(pair[0]):
                    assert same(state(pair[0]), state(graft))
                assert same(state(pair[0]), before)
                assert same(sg.fisher(pair[0], lambda m, i: m(inputs[i]).square().sum(), range(3)), wanted)
    for base, _ in (inside, outside):
        base.body.weight.register_hook(torch.zeros_like)
        squares = sg.fisher(base, lambda m, i: m(inputs[i]).square().sum(), range(3))
        assert not squares["body.weight"].any() and torch.equal(squares["body.bias"], wanted["body.bias"])


def test_squares_of_complex_numbers_are_real_and_those_of_sparse_gradients_are_as_dense_ones():
    base, _ = two_of(lambda: nn.ParameterDict({"filter": nn.Parameter(torch.randn(4, 5, dtype=torch.cfloat))}))
    found = sg.fisher(base, lambda m, i: (m["filter"] * (i + 1j)).abs().sum(), [1, 2])["filter"]
    torch.testing.assert_close(found, torch.full((4, 5), 2.0 + 5.0))
    squares = []
    for sparse in (False, True):
        bag, _ = two_of(lambda sparse=sparse: nn.EmbeddingBag(10, 4, sparse=sparse, mode="sum"))
        squares.append(sg.fisher(bag, lambda m, row: m(row[None]).square().sum(), torch.tensor([[1, 1, 3], [3, 4, 5]])))
    assert same(*squares) and squares[0]["weight"].any()


def test_infinities_in_both_models_did_not_move():
    def make(other: float = 0.0) -> nn.Module:
        return Any_(allowed=nn.Parameter(torch.tensor([other, -math.inf, math.nan, 1.0]), requires_grad=False))

    base, tuned = two_of(make)
    tuned.allowed.data = torch.tensor([0.5, -math.inf, math.nan, 1.0])
    for method in ("movement", "magnitude", "random", "bias"):
        mask = sg.localize(base, tuned, sparsity=0.1, parameters="*", method=method)
        assert torch.equal(sg.graft(base, tuned, mask).allowed[1:].nan_to_num(7.0), torch.tensor([-math.inf, 7.0, 1.0]).nan_to_num(7.0))
    assert 0 in sg.localize(base, tuned, sparsity=0.25, parameters="allowed").indices["allowed"]
    for method in ("learned", "grown"):
        with pytest.raises(GraftError, match="blends the two models, and allowed has infinite values or no numbers"):
            sg.localize(base, tuned, sparsity=0.1, parameters="*", method=method, loss=drift)
    base.body.weight.data[0, 0] = math.nan
    with pytest.raises(GraftError, match="body.weight of the base model has values that are infinite or no numbers"):
        sg.localize(base, tuned, sparsity=0.1)


@pytest.mark.parametrize("method", ["movement", "magnitude", "random", "bias", "lota"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_infinite_movement_is_refused_where_it_may_be_selected(method, value):
    base, tuned = two_of(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    tuned[0].bias.data[1] = value
    with pytest.raises(GraftError, match="^0.bias of the tuned model has values that are infinite or no numbers$"):
        sg.localize(base, tuned, sparsity=0.1, parameters="*", method=method)
    mask = sg.localize(base, tuned, sparsity=0.1, parameters="1", method=method)  # control: what isn't of the region does no harm
    assert sg.graft(base, tuned, mask)(torch.ones(4)).isfinite().all()
    for before, after, said in ((0.0, value, "w of the tuned model has values"), (3e38, -3e38, "moved further than a number can say")):
        with pytest.raises(GraftError, match=said):
            sg.localize(*({"w": torch.tensor([1.0, 2.0, one])} for one in (before, after)), sparsity=0.5)


def test_heads_are_known_in_wrappers_and_shared_weights_are_none():
    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body, self.fc = nn.Linear(4, 6, bias=False), nn.Embedding(6, 4), nn.Linear(4, 2)
            self.body.weight = self.head.weight

    base, tuned = Headed(), Headed()
    assert [*sg.localize(base, tuned, sparsity=0.5, parameters="all").region.shapes] == ["head.weight"], "which is the embedding, too"
    wrapped = [nn.DataParallel(model) for model in (base, tuned)]
    assert [*sg.localize(*wrapped, sparsity=0.5, parameters="all").region.shapes] == ["head.weight"]


def test_narrow_and_whole_numbers_are_compared_and_summed_exactly():
    base, tuned = (nn.Linear(64, 64, bias=False).to(torch.bfloat16) for _ in range(2))
    mask = sg.localize(base, tuned, sparsity=0.1)
    assert mask.equals(sg.localize(base.float(), tuned.float(), sparsity=0.1))
    one = nn.ParameterList([nn.Parameter(torch.ones(1, dtype=torch.bfloat16))])
    assert sg.fisher(one, lambda model, _: model[0].sum(), range(1000))["0"] == 1000
    counts = [
        nn.ParameterList([nn.Parameter(torch.tensor(v, dtype=torch.uint8), requires_grad=False)])
        for v in ([9, 0, 0], [8, 5, 0])
    ]
    assert sg.localize(*counts, sparsity=0.34).indices["0"].tolist() == [1]


# --- What can't be -----------------------------------------------------------------------------------------------


def asked(**options: object) -> Callable:
    """A call of localize with these options."""
    return lambda b, t_: sg.localize(b, t_, **{"sparsity": 0.1} | options)


def learnt(**options: object) -> Callable:
    return asked(**{"method": "learned", "steps": 2, "loss": drift} | options)


def half(b: nn.Module, t_: nn.Module) -> sg.GraftMask:
    return sg.localize(b, t_, sparsity=0.5)


def edited(mask: sg.GraftMask, base: nn.Module, *to: object) -> sg.Patch:
    return sg.Patch.edit(base, mask, *to)


def merged(tasks: Callable, **options: object) -> Callable:
    """A call of merge with the tasks that this makes of the models and a mask."""
    return lambda b, t_: sg.merge(b, tasks(b, t_, half(b, t_)), **options)


def patched(**more: object) -> Callable:
    return lambda b, t_: sg.Patch.of(b.float(), t_.float(), half(b, t_), **more)


def other_shape() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def of_values(tuned: nn.Module, mask: sg.GraftMask) -> SimpleNamespace:
    """What a merge takes of a patch."""
    weights = dict(tuned.named_parameters())
    return SimpleNamespace(mask=mask, values={name: weights[name].detach().reshape(-1)[at] for name, at in mask.indices.items()})


def drift(model: nn.Module) -> Tensor:
    return sum(weight.square().sum() for weight in model.parameters())


def unlike(pair: Callable[[], tuple[nn.Module, nn.Module]]) -> Callable:
    """The graft of a pair that this makes."""
    return lambda *_: (lambda base, tuned: sg.graft(base, tuned, half(base, tuned)))(*pair())


def chained(call: Callable) -> Callable:
    """A call with three states of one model, all alike but in their numbers."""
    return lambda *_: call(*(two_of(Any_, move)[move] for move in (False, True)), fine_tuned(two_of(Any_)[1]))


def inside(patch: Callable, call: Callable) -> Callable:
    """A call with a patch while it is on its model."""

    def act(base: nn.Module, *others: nn.Module) -> None:
        made = patch(base, *others)
        with made.on(base):
            call(made, base)

    return chained(act)


def entered(context: AbstractContextManager) -> None:
    with context:
        pass


def buffered(kind: torch.dtype, value: int) -> nn.Module:
    model = Any_()
    model.register_buffer("table", torch.full((3,), value, dtype=kind))
    return model


REGION = Region({"q": (4, 3), "a": (11,), "one": ()})
WIDE, TALL = (GraftMask.full(Region({"w": shape})) for shape in ((10,), (5, 2)))
SCORES = {"a": torch.ones(2, 2)}
P, M, K, D, T = ParamsError, ModelError, MaskError, DataError, TrainingError
REFUSED = [
    # models
    (lambda b, t_: asked()(b, b), M, "nothing moved"),
    (lambda b, t_: asked()(b, other_shape()), M, r"2.weight is \[3, 8\]"),
    (lambda b, t_: asked()(copy.deepcopy(b).float(), t_), M, r"pass base.to\(torch.float64\), or tuned.to"),
    (lambda b, t_: asked()(b, nn.ModuleDict({"inner": t_})), M, "pass tuned.inner"),
    (lambda b, t_: asked()(b, t_.state_dict()), P, "both of one kind"),
    (lambda b, t_: asked()(nn.LazyLinear(2), nn.LazyLinear(2)), M, "no values yet"),
    (lambda b, t_: asked()(b.state_dict(), {"0.weight": t_[0].weight}), M, "tuned lacks 0.bias"),
    (lambda b, t_: asked(sparsity=0.5)({"a": torch.zeros(2)}, {"a": torch.zeros(3)}), M, "a: should be a tensor of one shape"),
    (lambda b, t_: sg.graft(b, half(b, t_), t_), P, "a GraftMask"),
    (lambda b, t_: sg.graft(b, t_, sg.GraftMask.empty(Region({"0.weight": (3,)}))), M, "of other models"),
    (lambda b, t_: sg.load_mask("nowhere.safetensors"), K, "no such mask"),
    (lambda b, t_: sg.GraftMask.from_region_indices(Region({"a": (5,)}), torch.tensor([0.5, 1.2])), K, "whole numbers"),
    # what to localize, and by which method
    (asked(parameters=["0.wieght"]), M, "nearest is '0.weight'"), (asked(parameters=5), P, "5"), (asked(parameters=lambda _: False), M, "none"),
    (asked(heads="3"), M, "heads: .*nearest"), (lambda b, t_: asked(heads=b[2])(b, t_), P, "heads: Linear"),
    (asked(sparsity=1e-6), K, "less than one"), (asked(sparsity=[]), P, "no sizes"), (asked(sparsity=torch.tensor(0.1)), P, "no share"),
    *((asked(sparsity=size), P, "no share") for size in (1.5, -0.1, math.nan, "0.1", None)),
    *((asked(seed=seed), P, "seed: .*whole number") for seed in (-1, 1.5, "a", None)),
    (asked(method="lerned"), P, "'learned'"), (asked(method="learned", step=3), P, r"learned.step: .*'steps'"),
    *((asked(**{wrong: 1}), P, f"^{wrong}: unknown argument .*'{right}'") for wrong, right in (("parameter", "parameters"), ("heds", "heads"), ("dve", "dev"))),
    (asked(method=lambda k: k), P, r"function \(input, k\)"),
    *(
        (asked(method=lambda given, k, found=found: found), P, "a row of different whole numbers")
        for found in (None, torch.ones(83, dtype=torch.bool), torch.zeros(8, dtype=torch.int64), torch.rand(8))
    ),
    # losses, batches and scores
    (asked(method="learned"), P, "pass loss="), (lambda b, t_: asked(method="grown", loss=drift(t_))(b, t_), P, "Tensor is none"),
    (asked(method=lambda given, k: given.full_gradient()), P, "takes gradients"),
    (lambda b, t_: learnt()(b.state_dict(), t_.state_dict()), P, "these are tensors"),
    (lambda b, t_: asked(method="grown", loss=len)(copy.deepcopy(b).bfloat16(), copy.deepcopy(t_).bfloat16()), M, "pass copies in float32 "),
    (learnt(eval_steps=1), P, "without dev="), (asked(method="talos", mode="expected"), P, "the loss itself determines"),
    *((asked(method=method, loss=drift), P, "pass batches=") for method in ("fish", "talos")),
    *((learnt(loss=loss), P, r"a function \(model\)") for loss in (lambda m, batch: drift(m), nn.CrossEntropyLoss())),
    (learnt(batches=[1]), P, r"\(model, batch\)"), (learnt(loss=lambda m, batch: drift(m), batches={"ids": 1}), P, "not a dict"),
    (learnt(loss=lambda m: None), P, "not None"), (learnt(loss=lambda m: drift(m) * math.nan), T, "nan at step 0"),
    (learnt(dev=0.5), P, "not float"), (learnt(dev=lambda m: m[0].weight), P, "take its mean"), (learnt(dev=lambda m: math.nan), P, "maximise"),
    *(
        (asked(method="attribution", loss=loss), kind, word)
        for loss, kind, word in (
            (lambda _: drift(nn.Linear(2, 2)), M, "0 everywhere"), (lambda m: drift(m) * math.nan, M, "no number"),
            (lambda m: next(m.parameters()).reshape(-1), P, "one number"), (lambda m: 1.0, P, "a float"), (lambda m: drift(m).detach(), P, "without a gradient"),
        )
    ),
    (lambda b, t_: sg.fisher(b, lambda m, one: drift(m), 5), P, "not an int"),
    (lambda b, t_: sg.fisher(b, lambda m, one: drift(m), iter([])), P, "only once"), (learnt(loss=lambda m, _: drift(m), batches=iter([])), P, "only once"),
    (lambda b, t_: sg.fisher(b.requires_grad_(False), lambda m, _: drift(m), [0]), M, "requires gradients"),
    (lambda b, t_: sg.fisher(b.to("meta"), lambda m, _: drift(m), [0]), M, "on meta"),
    (lambda b, t_: sg.curve(b, t_, {0.5: half(b, t_)}, lambda m: None), P, "one number"),
    (lambda b, t_: sg.curve(b, t_, half(b, t_), drift), P, "not a GraftMask"),
    (lambda b, t_: sg.plot_curve({0.5: half(b, t_)}), P, "table: .*dict"),
    *(
        (lambda b, t_, given=given: sg.calibration_error(*given), kind, word)
        for given, kind, word in (
            ((torch.zeros(5, 3), [1]), D, r"\[5, 3\] and \[1\]"), ((torch.zeros(0, 3), []), D, r"\[0, 3\]"),
            *((((torch.zeros(1, 3), [label])), D, r"whole numbers within 0\.\.2") for label in (-100, 3, 0.5, 1j, math.nan)),
            ((torch.zeros(1, 3), [0], 0), P, "bins: 0"), ((torch.full((1, 3), math.nan), [0]), D, "finite but for -inf"),
            (({"logits": 1}, [0]), D, "a dict and a list"), ((torch.full((2, 4), 0.25), [0, 1]), D, "probabilities"),
        )
    ),
    # patches and merges
    (lambda b, t_: sg.Patch.of(b, t_, half(b, t_)), K, "torch.float64, and held are"),
    *(
        (lambda *_, kind=kind: (lambda a, b: sg.Patch.of(a, b, half(a, b)))(two_of(partial(buffered, kind, 0))[0], two_of(partial(buffered, kind, 1))[1]), K, f"table is {kind}")
        for kind in (torch.int8, torch.float64, torch.bool)
    ),
    (patched(labels="abc"), P, "list of names"), (patched(labels=["one"]), P, "two labels"), (patched(title=3), P, "title: 3"), (patched(author="me"), P, "author"),
    (lambda b, t_: sg.masked_optimizer(b.state_dict(), half(b, t_), torch.optim.SGD), P, "not an OrderedDict"),
    *(
        (lambda b, t_, to=to: edited(half(b, t_), b.float(), to), P, word)
        for to, word in (("x", "to: 'x' should be"), (None, "to: None"), (1e300, "torch.float32 holds"), (lambda values: values, r"a function \(values, name\)"))
    ),
    (lambda b, t_: edited(half(b, t_), b.to("meta")), M, "on meta"),
    *((lambda b, t_, alpha=alpha: edited(half(b, t_), b.float()).scaled(b, alpha), P, "alpha: .*finite number") for alpha in ("x", None, math.nan)),
    (lambda b, t_: sg.mask_of(dict(b.to("meta").named_parameters()), 0.1), P, "on meta"), (lambda b, t_: sg.localize(b, t_, sparsity=True), P, "sparsity: True"),
    (lambda b, t_: sg.merge(b, {}), P, "none to merge"), (lambda b, t_: sg.merge(b, {}, "tied"), P, "'ties'"),
    (lambda b, t_: sg.merge(5, {"a": (t_, half(b, t_))}), P, "not an int"), (lambda b, t_: sg.merge("base", {"a": (t_, half(b, t_))}), P, "^to: name the new folder"),
    (merged(lambda b, t_, m: {"a": (t_, m)}, how="dare", share=0), P, "share: 0"), (merged(lambda b, t_, m: {"a": (t_, m)}, how="arithmetic", alpha=math.nan), P, "alpha: nan"),
    (lambda b, t_: sg.merge(copy.deepcopy(b).bfloat16(), {"a": of_values(t_, half(b, t_))}), K, r"pass base.to\(torch.float64\)"),
    (merged(lambda b, t_, m: {"a": SimpleNamespace(mask=m, values={})}), K, "tasks.a: has no"), (merged(lambda b, t_, m: {"a": t_}), P, "not a Sequential"),
    (merged(lambda b, t_, m: [(t_, m)]), P, "not a list"), (merged(lambda b, t_, m: {1: (t_, m)}), P, "no text"),
    *(
        (lambda *_, given=given, options=options: sg.mask_of(given, **options), P, word)
        for given, options, word in (
            ({"a": torch.ones(2)}, {"size": 0.5, "per": "row"}, "no rows"), (SCORES, {"size": 0.5, "per": "colum"}, "column"), ({}, {"size": 1}, "scores"),
            *((SCORES, {"size": size}, "size") for size in (1.5, True)), ({"a": torch.tensor([1.0, math.nan])}, {"size": 1}, "no numbers"),
        )
    ),
    # masks
    *((lambda *_, at=at: GraftMask(REGION, {"a": torch.tensor(at)}), K, "rise strictly") for at in ([3, 2], [2, 2], [-1, 0], [0, 11])),
    *((lambda *_, at=at: GraftMask.from_region_indices(REGION, torch.tensor([3, at])), K, r"0\.\.23") for at in (-1, 24, 10_000)),
    *(
        (lambda *_, at=at: GraftMask(REGION, {"a": at}), K, "int64")
        for at in ([1], torch.tensor([1.0]), torch.tensor([True]), torch.tensor([[1]]), torch.tensor([1], dtype=torch.int32))
    ),
    (lambda *_: GraftMask(REGION, {"other": torch.tensor([0])}), K, "not in the region"),
    *(
        (lambda *_, words=words: GraftMask.full(REGION).by_row(*words), K, word)
        for words, word in ((("q", 2), "shape"), (("one",), "shape"), (("qu",), "not in the region"), (("q", 0, 3), "divided"))
    ),
    *((lambda *_, join=join: join(WIDE, TALL), K, "other models") for join in (or_, and_, sub, GraftMask.overlap)),
    # chains of exact differences
    (chained(lambda a, b, c: sg.diff(a, b).then(sg.diff(c, b))), K, "makes the state"), (chained(lambda a, b, c: sg.diff(c, b).put_on(a)), K, "fingerprint"),
    (chained(lambda a, b, c: sg.diff(a, b).then(sg.Patch.of(a, b, half(a, b)))), K, "doesn't say"), (chained(lambda a, b, c: sg.diff(a, b.double())), M, "float64"),
    (inside(lambda a, b, c: sg.diff(a, b), lambda patch, a: patch.put_on(a)), K, "another patch"),
    (chained(lambda a, b, c: sg.Patch.edit(a, half(a, b), lambda values, _: values[:0])), P, "values for"),
    (chained(lambda a, b, c: entered(sg.mixed(a, {"a": sg.diff(a, b)}, ["b"]))), P, "none of"),
    # what isn't in parameters or buffers
    (unlike(otherwise(lambda m: m.merge_adapter(), adapted)), M, "merged_adapters"), (unlike(lambda: (two_of(Any_)[0], adapted())), M, "live adapters"),
    (unlike(otherwise(lambda m: m.base_model.disable_adapter_layers(), adapted)), M, "disable_adapters"),
    (unlike(otherwise(lambda m: setattr(m, "scale", 2.0), lambda: Any_(scale=1.0))), M, "scale is 1.0"),
    *((unlike(otherwise(lambda m, act=act: setattr(m, "act", act), lambda: Any_(act=nn.ReLU()))), M, "act is ReLU") for act in (nn.GELU(), None)),
    (unlike(lambda: two_of(shared)), M, "share memory"), (unlike(otherwise(lambda m: None, lambda: Any_(lock=threading.Lock()))), M, "copied"),
    (unlike(otherwise(lambda m: setattr(m.layer, "__class__", Repacked), lambda: Any_(layer=Packed(2, 2)))), M, "quantise"),
    (merged(lambda b, t_, m: {"a": (m, t_)}), P, "a GraftMask"), (merged(lambda b, t_, m: {"a": (t_, None)}), P, "not None"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "word"), REFUSED)
def test_what_can_t_be_is_refused_in_one_line(call, kind, word):
    base, tuned, *_ = small()
    with pytest.raises(GraftError, match=word) as caught:
        call(base, tuned)
    assert "\n" not in str(caught.value) and type(caught.value) is kind
