"""Exact differences and their chains, masks of scores, edits, several patches in one batch, updates by the names of files."""

import copy
import errno
import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

import skill_grafting as sg
from skill_grafting.grafting.differences import as_bits
from skill_grafting.grafting.mask_files import seal
from skill_grafting.grafting.scores import Per
from skill_grafting.patches.__main__ import main
from tests.dvc_project import fenced
from tests.pico import FILLERS, save_causal, small_config

KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ODD = (0.0, -0.0, float("nan"), float("inf"), -1.5)


class Net(nn.Module):
    """Layers, a norm with statistics, and buffers of whole numbers and of truth values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(width, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.register_buffer("seen", torch.arange(4))
        self.register_buffer("flags", torch.tensor([True, False, True]))


def state(model):
    return {name: as_bits(values) for name, values in model.state_dict().items()}


def same(one, other):
    ours, theirs = state(one), state(other)
    return ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)


def stepped(model: nn.Module, share: float, odd: list[float], generator: torch.Generator) -> nn.Module:
    """A model some of whose numbers changed, some into odd ones."""
    new = copy.deepcopy(model)
    with torch.no_grad():
        for values in new.parameters():
            at = torch.rand(values.shape, generator=generator) < share
            values[at] = (values[at].double() + torch.randn(int(at.sum()), generator=generator, dtype=torch.float64)).to(values.dtype)
            for number in odd:
                values.view(-1)[int(torch.randint(values.numel(), (1,), generator=generator))] = number
        new.seen.add_(int(torch.randint(2, (1,), generator=generator)))
        new.flags.logical_xor_(torch.rand(3, generator=generator) < share)
        new.norm.running_mean.add_(share)
    return new


def chain_holds(seed: int, kind: torch.dtype, share: float, odd: list[float], folder) -> None:
    """All ways along a chain of three states end in the same bits."""
    generator = torch.Generator().manual_seed(seed)
    states = [Net(3 + seed % 4).to(kind).eval()]
    for _ in range(2):
        states.append(stepped(states[-1], share, odd, generator))
    patches = [sg.diff(*pair) for pair in pairwise(states)]
    patches[0].save_pretrained(folder)
    assert sg.Patch.from_pretrained(folder) == patches[0]
    patches[0].save_pretrained(folder, compact=True)
    assert sg.Patch.from_pretrained(folder) == patches[0]
    assert same(sg.Patch.from_pretrained(folder).apply(states[0]), states[1])
    assert same(patches[0].then(patches[1]).apply(states[0]), states[2])
    live = copy.deepcopy(states[0])
    for patch in patches:
        with patch.on(live):
            pass
        patch.put_on(live)
    assert same(live, states[2])
    if patches[0].mask.selected:  # what travels whole is no part of a fingerprint
        with pytest.raises(sg.GraftError, match="fingerprint"), patches[0].on(live):
            pass


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31), st.sampled_from(KINDS), st.sampled_from([0.0, 0.1, 1.0]), st.lists(st.sampled_from(ODD), max_size=3)
)
def test_differences_and_their_chains_give_all_bits(tmp_path_factory, seed, kind, share, odd):
    chain_holds(seed, kind, share, odd, tmp_path_factory.mktemp("step"))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_thousand_of_them_do(tmp_path):
    for seed in range(10_000):
        odd = [ODD[(seed + place) % len(ODD)] for place in range(seed % 4)]
        chain_holds(seed, KINDS[seed % 4], (0.0, 0.05, 0.3, 1.0)[seed // 4 % 4], odd, tmp_path / str(seed % 50))


@pytest.fixture
def step() -> sg.Patch:
    """A step that changes one number in two hundred, in bfloat16."""
    base, generator = nn.Linear(300, 400).bfloat16(), torch.Generator().manual_seed(1)
    base.weight.data.normal_(0, 0.02, generator=generator)
    tuned = copy.deepcopy(base)
    at = torch.rand(tuned.weight.shape, generator=generator) < 0.005
    tuned.weight.data[at] *= 1.01
    return sg.diff(base, tuned, title="step")


def test_a_compact_patch_is_the_same_patch_in_half_the_bytes(step, tmp_path):
    for compact in (False, True):
        step.save_pretrained(tmp_path / str(compact), compact=compact)
    plain, small = (tmp_path / name / "patch.safetensors" for name in ("False", "True"))
    assert sg.Patch.from_pretrained(small) == step and sg.load_mask(small) == step.mask
    per_value = [sum(part.nbytes for part in load_file(file).values()) / step.mask.selected for file in (plain, small)]
    assert per_value[0] == 6 and 2 < per_value[1] < 3.3
    sg.Patch.from_pretrained(small).save_pretrained(tmp_path / "again")
    assert (tmp_path / "again/patch.safetensors").read_bytes() == plain.read_bytes()
    assert "plain" in (small.parent / "README.md").read_text() and "plain" not in (plain.parent / "README.md").read_text()


def test_a_damaged_compact_patch_is_refused(step, tmp_path):
    step.save_pretrained(tmp_path, compact=True)
    whole, file = (tmp_path / "patch.safetensors").read_bytes(), tmp_path / "patch.safetensors"
    for place in range(8, len(whole), 97):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(sg.MaskError, match="damaged|not a mask file"):
            sg.Patch.from_pretrained(file)
    wrong = {"gaps": lambda stream: stream[:-9], "packed": lambda stream: torch.cat([stream, stream]), "kinds": lambda kind: "float64"}
    for what, change in wrong.items():
        made = {name: (change(stream) if name.startswith(what) else stream) for name, stream in load_file_of(whole, file).items()}
        about = header_of(whole)
        about["compact"] = {name: change(kind) if what == "kinds" else kind for name, kind in about["compact"].items()}
        save_file(made, file, metadata={"graft": json.dumps(about)})
        seal(file)
        with pytest.raises(sg.MaskError, match="damaged"):
            sg.Patch.from_pretrained(file)


def header_of(whole: bytes) -> dict:
    return json.loads(json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]["graft"])


def load_file_of(whole: bytes, file) -> dict[str, torch.Tensor]:
    file.write_bytes(whole)
    return {name: values.clone() for name, values in load_file(file).items()}


# --- Masks of scores ---------------------------------------------------------------------------------------------------


def brute_force(scores: torch.Tensor, size: float, per: Per) -> set[int]:
    """The places of one matrix that a mask should have, by sorting pairs of score and place."""
    rows, columns = scores.shape
    flat = scores.flatten().tolist()

    def best(places, value=lambda place: flat[place]):
        places = [*places]
        k = size if isinstance(size, int) else int(size * len(places) + 1e-9)
        return sorted(places, key=lambda place: (-value(place), place))[:k]

    lines = {"row": [range(r * columns, (r + 1) * columns) for r in range(rows)], "column": [range(c, rows * columns, columns) for c in range(columns)]}
    if per == "tensor":
        return {*best(range(len(flat)))}
    if per in lines:
        return {place for line in lines[per] for place in best(line)}
    whole = lines[per.removesuffix("s")]
    return {place for number in best(range(len(whole)), lambda one: sum(flat[place] for place in whole[one])) for place in whole[number]}


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(0, 10_000), st.sampled_from([0.2, 0.5, 1.0, 1, 3]),
    st.sampled_from(["tensor", "row", "column", "rows", "columns"]),
)  # fmt: skip
def test_a_mask_of_scores_has_those_that_brute_force_finds(rows, columns, seed, size, per):
    scores = {"a": torch.randint(0, 4, (rows, columns), generator=torch.Generator().manual_seed(seed)).float(), "b": torch.rand(4, 3)}
    mask = sg.mask_of(scores, size, per=per)
    for name, values in scores.items():
        assert {*mask.indices.get(name, torch.empty(0)).tolist()} == brute_force(values, size, per)
    lowest = sg.mask_of({name: -values for name, values in scores.items()}, size, per=per, largest=False)
    assert lowest == mask


def test_a_mask_of_the_region_has_exactly_as_many_the_first_of_equals():
    scores = {"a": torch.ones(3, 2), "b": torch.ones(2, 2)}
    assert sg.mask_of(scores, 7) == sg.mask_of(scores, 0.75) == sg.GraftMask.from_region_indices(sg.Region({"a": (3, 2), "b": (2, 2)}), torch.arange(7))


# --- Edits ---------------------------------------------------------------------------------------------------------------


def test_values_are_edited_scaled_and_put_back():
    base = Net(3).eval()
    tuned = stepped(base, 1.0, [], torch.Generator().manual_seed(1))
    tuned.seen.copy_(base.seen), tuned.flags.copy_(base.flags), tuned.norm.running_mean.copy_(base.norm.running_mean)
    mask = sg.mask_of({name: (a - b).abs() for (name, a), b in zip(tuned.named_parameters(), base.parameters(), strict=True)}, 0.3)
    gone = sg.Patch.edit(base, mask).apply(base)
    assert all(bool((dict(gone.named_parameters())[name].reshape(-1)[at] == 0).all()) for name, at in mask.indices.items())
    assert same(sg.Patch.edit(base, mask, lambda values, _: values).apply(base), base) and not same(gone, base)
    patch = sg.Patch.of(base, tuned, mask)
    assert same(patch.scaled(base, 1).apply(base), patch.apply(base)) and same(patch.scaled(base, 0).apply(base), base)
    away, twice = (dict(patch.scaled(base, alpha).apply(base).named_parameters()) for alpha in (-1.0, 2.0))
    for name, values in base.named_parameters():
        moved = (dict(patch.apply(base).named_parameters())[name] - values).double()
        assert torch.allclose(away[name].double(), values.double() - moved, atol=1e-6)
        assert torch.allclose(twice[name].double(), values.double() + 2 * moved, atol=1e-6)


def test_numbers_of_another_type_are_no_exact_difference():
    base, tuned = (nn.Sequential(nn.Linear(4, 4)) for _ in range(2))
    assert same(sg.diff(base, tuned).apply(base), tuned), "control"
    for kinds in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        with pytest.raises(sg.ModelError, match="torch.bfloat16"):
            sg.diff(*(copy.deepcopy(model).to(kind) for model, kind in zip((base, tuned), kinds, strict=True)))


def test_a_patch_fits_a_model_with_whole_numbers_beside_what_it_writes(tmp_path):
    base = nn.Sequential(nn.Linear(4, 4))
    base.codes = nn.Parameter(torch.arange(5, dtype=torch.uint8), requires_grad=False)
    tuned = copy.deepcopy(base)
    tuned[0].weight.data += 1
    mask = sg.localize(base, tuned, sparsity=0.5)
    sg.Patch.of(base, tuned, mask).save_pretrained(tmp_path / "patch")
    patch, wanted = sg.Patch.from_pretrained(tmp_path / "patch"), sg.graft(base, tuned, mask)
    assert same(patch.apply(base), wanted) and same(sg.merge(base, {"a": patch}), wanted) and not same(base, wanted)
    assert same(sg.Patch.edit(base, mask, lambda values, _: values).apply(base), base)
    other = copy.deepcopy(base)
    other.codes.data[0] = 7
    with pytest.raises(sg.MaskError, match="another state"):
        patch.apply(other)


# --- Several patches in one batch -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama():
    import transformers

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(small_config("llama")).eval()


def moved(base: nn.Module, seed: int, share: float = 1.0) -> nn.Module:
    """A copy of which such a share of the numbers moved."""
    tuned, generator = copy.deepcopy(base), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for values in tuned.parameters():
            at = torch.rand(values.shape, generator=generator) < share
            values[at] += 0.3 * torch.randn(int(at.sum()), generator=generator)
    return tuned


def test_each_row_of_a_batch_is_written_on_by_its_own_patch(llama):
    patches = {}
    for seed in range(3):
        tuned = moved(llama, seed)
        mask = sg.localize(llama, tuned, sparsity=0.3, parameters="*_proj.weight", progress=False)
        patches[seed] = sg.Patch.of(llama, tuned, mask)
    ids, rows = torch.randint(5, llama.config.vocab_size, (6, 5), generator=torch.Generator().manual_seed(3)), [0, 1, None, 2, 1, 0]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def written(words):
        return llama.generate(words, attention_mask=torch.ones_like(words), **options)

    with torch.no_grad(), sg.mixed(llama, patches, rows):
        found = written(ids)
    alone = written(ids)
    for place, row in enumerate(rows):
        if row is None:
            assert found[place].equal(alone[place])
        else:
            with patches[row].on(llama):
                assert found[place].equal(written(ids[place : place + 1])[0])
    assert not found.equal(alone), "control"
    assert written(ids).equal(alone), "nothing is left of them"
    everywhere = sg.Patch.of(llama, tuned, sg.localize(llama, tuned, sparsity=0.5, parameters="all", progress=False))
    with pytest.raises(sg.GraftError, match="linear"), sg.mixed(llama, {"a": everywhere}, ["a"]):
        pass


# --- Names of files ----------------------------------------------------------------------------------------------------

MIXTURES = {
    "Mixtral": {"num_local_experts": 2}, "Qwen2Moe": {"num_experts": 2, "moe_intermediate_size": 12, "shared_expert_intermediate_size": 12},
    "Qwen3Moe": {"num_experts": 2, "moe_intermediate_size": 12, "head_dim": 8}, "Olmoe": {"num_experts": 2},
    "DeepseekV3": {
        "n_routed_experts": 4, "moe_intermediate_size": 12, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
        "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", MIXTURES)
def test_the_file_of_a_mixture_of_experts_takes_updates_by_its_own_names(kind, tmp_path):
    """What vLLM's loader does with a sparse update stands in: each value is set at its flat index in the tensor of that name."""
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 40}
    config = getattr(transformers, f"{kind}Config")(**sizes, num_experts_per_tok=1, pad_token_id=0) if kind != "DeepseekV3" else transformers.DeepseekV3Config(**sizes, pad_token_id=0, **MIXTURES[kind])
    for name, value in MIXTURES[kind].items():
        setattr(config, name, value)
    torch.manual_seed(0)
    base = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    tuned = moved(base, 5, 0.1)
    for model, name in ((base, "base"), (tuned, "tuned")):
        model.save_pretrained(tmp_path / name)
    patch = sg.diff(base, tuned)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "tuned"))
    assert not all(before[name].equal(after[name]) for name in after), "control"
    for update in patch.updates(names="file", model=base):
        assert tuple(before[update.name].shape) == update.shape and update.indices.dtype == torch.int32
        before[update.name].view(-1)[update.indices.long()] = update.values
    assert all(before[name].equal(after[name]) for name in after)
    assert {update.name for update in patch.updates()} <= {*dict(base.named_parameters()), *dict(base.named_buffers())}


@pytest.mark.parametrize("copies", ["all that is asked for", "a part, and then nothing", "nothing", "not between such files"])
def test_the_command_makes_a_step_that_apply_puts_back_bit_for_bit(llama, tmp_path, capsys, monkeypatch, copies):
    system, calls = getattr(os, "copy_file_range", lambda *_: 0), []

    def copy(source: int, target: int, count: int, start: int, to: int) -> int:
        calls.append(count)
        if copies.startswith("not"):
            raise OSError(errno.EXDEV, "of two kinds")
        if copies == "nothing" or (copies.startswith("a part") and len(calls) % 2 == 0):
            return 0
        return system(source, target, count if copies.startswith("all") else 1 + count // 3, start, to)

    monkeypatch.setattr(os, "copy_file_range", copy, raising=False)
    tuned = moved(llama, 5, 0.1)
    for model, name in ((llama, "base"), (tuned, "tuned")):
        model.save_pretrained(tmp_path / name)
    main(["diff", "--base", str(tmp_path / "base"), "--finetuned", str(tmp_path / "tuned"), "--to", str(tmp_path / "step")])
    main(["apply", str(tmp_path / "step"), "--base", str(tmp_path / "base"), "--to", str(tmp_path / "made")])
    made, wanted = (load_file(tmp_path / name / "model.safetensors") for name in ("made", "tuned"))
    assert made.keys() == wanted.keys() and all(as_bits(made[name]).equal(as_bits(wanted[name])) for name in wanted)
    assert "makes the state" in capsys.readouterr().out and len(calls) >= len(made)


def test_a_tensor_that_no_part_has_stays_with_its_model(tmp_path):
    import transformers

    ends = {f"{end}_{what}": size for end in ("encoder", "decoder") for what, size in {"layers": 1, "attention_heads": 2, "ffn_dim": 64}.items()}
    base = transformers.BartForConditionalGeneration(small_config("bart", **ends)).eval()
    assert not base.final_logits_bias.any(), "control: what differs would travel whole"
    base.save_pretrained(tmp_path / "base"), moved(base, 1).save_pretrained(tmp_path / "tuned")
    for command, to in (("diff", "step"), ("localize", "patch")):
        main([command, "--base", str(tmp_path / "base"), "--finetuned", str(tmp_path / "tuned"), "--to", str(tmp_path / to)])
        main(["apply", str(tmp_path / to), "--base", str(tmp_path / "base"), "--to", str(tmp_path / f"made of {to}")])
        made = load_file(tmp_path / f"made of {to}/model.safetensors")
        assert made.keys() == load_file(tmp_path / "base/model.safetensors").keys() and "final_logits_bias" in made


OTHERS = ("lm_eval", "fusion_bench")
FILMS = """{task: films, dataset_path: json, dataset_kwargs: {data_files: {test: rows.jsonl}}, test_split: test, output_type: multiple_choice,
doc_to_text: "{{text}}", doc_to_choice: [good, bad], doc_to_target: gold, metric_list: [{metric: acc}]}"""


def test_the_page_runs_as_it_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for language, block in fenced("docs/STEPS.md"):
        assert language == "python"
        if not any(f"from {other}" in block for other in OTHERS):
            exec(block, {})
    said = capsys.readouterr().out
    assert "numbers changed" in said and "experts.2.w1.weight (48, 32) [0, 1, 2]" in said


@pytest.mark.filterwarnings("ignore")  # other libraries' own
@pytest.mark.parametrize("other", OTHERS)
def test_other_tools_see_the_patched_model(other, tmp_path, monkeypatch):
    pytest.importorskip(other)
    monkeypatch.chdir(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(save_causal(tmp_path / "base", "llama"))
    for seed, name in enumerate(("first", "second")):
        sg.diff(base, moved(base, seed)).save_pretrained(name)
    Path("rows.jsonl").write_text("\n".join(json.dumps({"text": f"the {word} was", "gold": 0}) for word in FILLERS))
    Path("tasks").mkdir()
    Path("tasks/films.yaml").write_text(FILMS)
    [block] = [block for _, block in fenced("docs/STEPS.md") if f"from {other}" in block]
    exec(block, made := {})
    if other == "lm_eval":
        again = made["simple_evaluate"](**made["asked"])["results"]["films"]
        assert made["before"] == again != made["patched"], "the base is as before"
    else:
        ours = sg.merge(base, {name: sg.Patch.from_pretrained(name) for name in made["models"]}, "arithmetic", alpha=0.5)
        assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(ours.parameters(), made["merged"].parameters(), strict=True))
        assert not same(ours, base), "control"
