"""Parameter-efficient methods start as the plain model, train nothing else, and are counted exactly."""

import copy

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

from skill_grafting.errors import ModelError
from skill_grafting.models.importing import import_model
from skill_grafting.models.label_model import LabelModel
from skill_grafting.models.predicting import dev_score, predict
from skill_grafting.models.structure import groups_of
from skill_grafting.runtime import seeded_torch
from skill_grafting.training.finetuning import TrainingCell
from stages.study.peft import METHODS, attach, plans_of, train_efficiently, trained_parameters
from stages.study.settings import PeftTraining
from tests.pico import TOY, VOCABULARY, model_settings, runtime, save_with_words, toy_rows

WIDTH, LAYERS = 32, 2
KINDS = [
    ("bert", "standard"), ("bert", "prompt"), ("roberta", "prompt"), ("gpt2", "standard"), ("gpt2", "autoregressive"), ("llama", "autoregressive"),
    ("mpnet", "prompt"), ("distilbert", "prompt"), ("albert", "prompt"), ("deberta-v2", "prompt"),
    ("modernbert", "prompt"), ("gpt_neox", "autoregressive"), ("opt", "autoregressive"),
]  # fmt: skip
# the head of standard mode: 2 labels; BERT's has a bias
HEADS = {"bert": 2 * WIDTH + 2, "gpt2": 2 * WIDTH}
# inputs + outputs of the matrices that LoRA updates: query and value; query, key and value in one; one value head of two
LORA = {"llama": 2 * WIDTH + WIDTH + WIDTH // 2}


def folder_of(folder, kind):
    """A language model of this kind beside the word tokenizer."""
    sizes = {
        "vocab_size": len(VOCABULARY), "hidden_size": WIDTH, "dim": WIDTH, "embedding_size": WIDTH, "word_embed_proj_dim": WIDTH,
        "intermediate_size": 64, "hidden_dim": 64, "ffn_dim": 64, "num_hidden_layers": LAYERS, "n_layers": LAYERS,
        "num_attention_heads": 2, "n_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    known = dir(AutoConfig.for_model(kind))
    config = AutoConfig.for_model(kind, **{name: size for name, size in sizes.items() if name in known})
    with seeded_torch("masked"):
        model = (AutoModelForCausalLM if kind in ("gpt_neox", "opt") else AutoModelForMaskedLM).from_config(config)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.15)
    return save_with_words(model, folder)


@pytest.fixture(scope="session")
def folders(tmp_path_factory, pico_bert, pico_gpt2, pico_llama):
    ready = {"bert": pico_bert, "gpt2": pico_gpt2, "llama": pico_llama}
    others = {kind for kind, _ in KINDS} - {*ready} | {"squeezebert"}
    return ready | {kind: folder_of(tmp_path_factory.mktemp(kind), kind) for kind in sorted(others)}


@pytest.fixture
def load(folders):
    """load(kind, mode): a fresh model, the same one every time."""

    def fresh(kind: str, mode: str) -> LabelModel:
        with seeded_torch("test"):
            return LabelModel.load(folders[kind], TOY, model_settings(mode), runtime())

    return fresh


def attached(model: LabelModel, method: str, size: int) -> dict[str, Tensor]:
    """attach, drawing the same numbers every time: a bottleneck of few ReLUs may start dead."""
    with seeded_torch("test", method):
        return attach(model, method, size)


def closed_form(kind: str, method: str, size: int) -> int:
    bottleneck = 2 * WIDTH * size + WIDTH + size
    of_block = {"lora": size * LORA.get(kind, 4 * WIDTH), "houlsby": 2 * bottleneck, "pfeiffer": bottleneck}[method]
    return of_block * (1 if kind == "albert" else LAYERS)


def every_value(model: LabelModel) -> dict[str, Tensor]:
    """Copies of all parameters and buffers; a matrix that LoRA updates under the name it had before."""
    values = model.model.state_dict()
    return {name.replace(".base_layer.", "."): value.clone() for name, value in values.items()}


def descend(model: LabelModel, steps: int = 3) -> None:
    """A few steps of an optimizer that is handed every parameter and moves those that have a gradient."""
    optimizer = torch.optim.AdamW(model.model.parameters(), lr=0.01, weight_decay=0.1)
    batch = model.batch(model.encode(toy_rows(16)))
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model.logits(batch), batch.labels).backward()
        optimizer.step()


def changed(before: dict[str, Tensor], model: LabelModel) -> set[str]:
    """Names of what is new or has moved."""
    after = every_value(model)
    assert before.keys() <= after.keys(), "nothing is lost"
    return {name for name, value in after.items() if name not in before or not torch.equal(before[name], value)}


def of_each(test):
    """Of every method in every kind of model."""
    return pytest.mark.parametrize("method", METHODS)(pytest.mark.parametrize(("kind", "mode"), KINDS)(test))


# what is inserted


@of_each
def test_as_much_as_the_formula_says_is_inserted_and_at_first_changes_no_bit(load, kind, mode, method):
    model, size = load(kind, mode), 3
    examples = model.encode(toy_rows(20))
    plain = predict(model, examples)
    trained = attached(model, method, size)
    expected, head = closed_form(kind, method, size), HEADS[kind] if mode == "standard" else 0
    count = {"parameters": expected, "with_head": expected + head, "share": expected / 1000}
    assert trained_parameters(model, trained, 1000) == count
    assert torch.equal(predict(model, examples), plain)
    with torch.no_grad(), seeded_torch("other weights"):
        for name, weight in trained.items():
            if "lora" in name or "adapter" in name:
                weight.normal_(std=0.3)
    assert float((predict(model, examples) - plain).abs().max()) > 1e-3, "control: what was inserted is used"


@of_each
def test_only_what_was_inserted_and_the_head_move_and_can_be_put_into_another_model(load, kind, mode, method):
    model, other = load(kind, mode), load(kind, mode)
    before, head = every_value(model), {name for name, group in groups_of(model).items() if group == "head"}
    trained = attached(model, method, 4)
    assert bool(head) == (mode == "standard") and head <= {*trained}
    assert {name for name, weight in model.parameters().items() if weight.requires_grad} == {*trained}
    start = {name: weight.detach().clone() for name, weight in trained.items()}
    descend(model)
    assert changed(before, model) == {*trained}
    assert all(not torch.equal(start[name], weight) for name, weight in trained.items()), "each of them did move"
    attached(other, method, 4)
    examples = model.encode(toy_rows(20))
    assert not torch.equal(predict(other, examples), predict(model, examples)), "control"
    other.put({name: weight.detach() for name, weight in trained.items()})
    assert torch.equal(predict(other, examples), predict(model, examples))
    groups = groups_of(model)
    assert {groups[name] for name in trained} == ({"layers", "head"} if mode == "standard" else {"layers"})


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize(("kind", "path"), [("bert", "bert.encoder.layer.0.attention.self.query"), ("gpt2", "transformer.h.0.attn.c_attn")])  # fmt: skip
def test_lora_adds_twice_b_a_at_any_rank(load, kind, path, rank):
    model = load(kind, "prompt" if kind == "bert" else "autoregressive")
    plain = copy.deepcopy(model.model.get_submodule(path))
    trained = attached(model, "lora", rank)
    down, up = (trained[f"{path}.lora_{part}.default.weight"] for part in "AB")
    hidden = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        up.normal_(generator=torch.Generator().manual_seed(1))
        expected = plain(hidden) + 2 * hidden @ down.T @ up.T
        assert torch.allclose(model.model.get_submodule(path)(hidden), expected, atol=1e-5)
        assert not torch.allclose(plain(hidden), expected, atol=1e-2), "control"


@pytest.mark.parametrize(("method", "activation"), [("houlsby", torch.nn.functional.gelu), ("pfeiffer", torch.relu)])
def test_a_bottleneck_is_added_to_what_the_projection_gives(load, method, activation):
    model = load("bert", "prompt")
    path = "bert.encoder.layer.0.output.dense"
    plain = copy.deepcopy(model.model.get_submodule(path))
    part = {name.removeprefix(f"{path}.adapter."): weight for name, weight in attached(model, method, 4).items()}
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        part["up.weight"].fill_(0.5)
        part["up.bias"].fill_(0.1)
        before = plain(hidden)
        inner = activation(before @ part["down.weight"].T + part["down.bias"])
        expected = before + inner @ part["up.weight"].T + part["up.bias"]
        assert torch.allclose(model.model.get_submodule(path)(hidden), expected, atol=1e-5)
    assert 0 < float(part["down.weight"].detach().abs().max()) <= 0.02, "cut off at twice the deviation"


# what is refused


@pytest.mark.parametrize(
    ("kind", "method", "size", "said"),
    [
        ("bert", "housby", 2, r"'housby': no such parameter-efficient method \(did you mean 'houlsby'\?\); known: lora, houlsby, pfeiffer$"),
        *(("bert", method, 0, f"{method}: 0 is not allowed as its size: should be 1 or more$") for method in METHODS),
        *(("squeezebert", method, 1, "SqueezeBertForMaskedLM: its layers are built in no way .*; known: BERT") for method in METHODS),
    ],
)  # fmt: skip
def test_what_cannot_be_inserted_is_refused_and_the_model_untouched(load, kind, method, size, said):
    model = load(kind, "prompt")
    before = every_value(model)
    with pytest.raises(ModelError, match=f"^{said}"):
        attach(model, method, size)
    assert not changed(before, model)


# a cell


@pytest.fixture(scope="session")
def imported(tmp_path_factory, folders):
    """imported(kind, mode): (folder, anatomy), made once."""
    made = {}

    def make(kind: str, mode: str):
        if (kind, mode) not in made:
            folder = tmp_path_factory.mktemp(f"{kind}-{mode}") / "pretrained"
            made[kind, mode] = (folder, import_model(folders[kind], model_settings(mode), folder))
        return made[kind, mode]

    return make


ROWS = {"train": toy_rows(32, 1), "dev": toy_rows(32, 2)}


def trained_cell(folder, mode, name, seed=0, on_step=lambda: None, steps=12, rates=(1e-2,)):
    """The trained model, what was trained of it, and the record."""
    training = PeftTraining(learning_rates=[*rates], weight_decay=0.01, clip_norm=1.0)
    cell = TrainingCell(TOY, seed, ROWS, model_settings(mode), runtime(), folder)
    return train_efficiently(cell, name, plans_of(training, {"batch_size": 8, "steps": steps}), on_step)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("kind", "mode"), [("bert", "standard"), ("gpt2", "autoregressive")])
def test_a_cell_leaves_the_pretrained_parameters_as_they_are_and_counts_the_rest(imported, kind, mode, method):
    folder, anatomy = imported(kind, mode)
    steps = []
    model, weights, record = trained_cell(folder, mode, f"{method}_2", on_step=lambda: steps.append(1))
    plain = every_value(LabelModel.load(folder, TOY, model_settings(mode), runtime()))
    moved = {name for name in changed(plain, model) if name in plain}
    assert moved == {*anatomy.names(["head"])}
    assert len(steps) == 12 and [point["step"] for point in record["curve"]] == [10, 12]
    size = trained_parameters(model, weights, 1)
    assert size["parameters"] == size["share"] == closed_form(kind, method, 2)
    measured = record["dev_accuracy"], -record["grid"][0]["dev_loss"]
    assert measured == dev_score(model, model.encode(ROWS["dev"]))


@pytest.mark.parametrize("method", METHODS)
def test_dev_chooses_the_rate_at_which_the_task_is_learned(imported, method):
    folder, _ = imported("bert", "prompt")
    rates, seen = [1e-9, 1e-2, 1e-8], []
    _, _, record = trained_cell(folder, "prompt", f"{method}_8", steps=60, rates=rates, on_step=lambda: seen.append(1))
    assert [point["learning_rate"] for point in record["grid"]] == rates and len(seen) == 3 * 60
    assert record["chosen"]["learning_rate"] == 1e-2 and record["chosen"]["steps"] == 60
    losses = [point["dev_loss"] for point in record["grid"]]
    assert losses[1] < 0.7 * min(losses[0], losses[2]), "control: others learn nothing"
    assert record["curve"][-1]["train_loss"] < 0.7 * record["curve"][0]["train_loss"]


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_gives_one_result_and_another_seed_another(imported, method):
    folder, _ = imported("bert", "standard")
    state = torch.get_rng_state()
    cells = (trained_cell(folder, "standard", f"{method}_2", seed)[0] for seed in (3, 3, 4))
    first, again, other = map(every_value, cells)
    assert torch.equal(torch.get_rng_state(), state), "the global random state neither matters nor changes"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])
