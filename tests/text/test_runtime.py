"""What a run prepares of torch: nothing is filled that is written anyway, and no device but the run's own is seeded or asked."""

from types import SimpleNamespace

import pytest
import torch

from stages.text.models.objective import objective_of
from stages.text.models.predicting import predict
from stages.text.tasks import runtime
from stages.text.training.finetuning import finetune
from stages.workflow.cells.cells import GraftCell
from tests.pico import finetune_settings, localizer_settings, same, values_of

SETTINGS = SimpleNamespace(device="cpu", precision="float32", threads=1, batch_tokens=64, gradient_checkpointing=False)


@pytest.fixture
def deterministic():
    fills = torch.utils.deterministic.fill_uninitialized_memory
    mode, threads = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    yield
    torch.utils.deterministic.fill_uninitialized_memory = fills
    torch.set_deterministic_debug_mode(mode)
    torch.set_num_threads(threads)


def test_new_memory_is_not_filled_and_training_and_mask_learning_give_the_same_bytes(make_cell, deterministic):
    runtime.start(SETTINGS)
    assert torch.are_deterministic_algorithms_enabled() and not torch.empty(5).isnan().all()
    found, cell = [], make_cell("prompt")
    for fills in (False, True):
        torch.utils.deterministic.fill_uninitialized_memory = fills
        assert not fills or torch.empty(5).isnan().all(), "control: it is what fills new memory"
        tuned = values_of(finetune(cell.to_train(), finetune_settings(max_steps=8, dropout=0.1)).model)
        opened = GraftCell.of(cell.load(), 0, ["layers"], cell.pretrained_folder)
        settings = localizer_settings("learned", select="authors", steps=8, eval_steps=4, batch_size=8)
        loss = objective_of(opened.model, opened.region.shapes, cell.rows["train"], cell.rows["dev"])
        mask = opened.masks(settings, [0.02], "sparsity", loss, opened.draws("learned"))[0.02]
        found.append((tuned, mask.indices, mask.record))
    (tuned, mask, record), (others, other_mask, other_record) = found
    assert same(tuned, others) and same(mask, other_mask) and record == other_record


def test_stages_of_two_processes_start_with_the_same_random_numbers(deterministic):
    """Learning a mask seeds nothing itself."""
    drawn = []
    for seed in (1, 2):  # torch starts with another one in each process
        torch.manual_seed(seed)
        runtime.start(SETTINGS)
        drawn.append((torch.initial_seed(), torch.rand(1)))
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("device", "precision", "tokens", "set_to"),
    [("cuda", torch.float32, 128, [True]), ("cuda", torch.float32, 129, [False]), ("cuda", torch.bfloat16, 512, [True]), ("cpu", torch.float32, 512, [])],
)  # fmt: skip
def test_attention_of_more_keys_than_one_kernel_takes_at_once_is_plain_arithmetic(
    monkeypatch, device, precision, tokens, set_to
):
    found = []
    monkeypatch.setattr(torch.backends.cuda, "enable_mem_efficient_sdp", found.append)
    runtime.Runtime(torch.device(device), precision, 64).choose_attention(tokens)
    assert found == set_to


def test_each_pass_chooses_its_attention_by_its_longest_row(make_cell, monkeypatch):
    tokens = []
    monkeypatch.setattr(runtime.Runtime, "choose_attention", lambda _, longest: tokens.append(longest))
    model = make_cell("prompt").load(batch_tokens=1)
    examples = model.encode(make_cell("prompt").rows["dev"])
    predict(model, examples)
    assert tokens == sorted(len(example.input_ids) for example in examples)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on a card, by hand: pytest tests/text/test_runtime.py -k card")
def test_on_a_card_the_gradient_of_attention_repeats_itself(deterministic):
    machine = runtime.start(SimpleNamespace(**{**vars(SETTINGS), "device": "cuda"}))
    machine.choose_attention(512)
    parts = torch.randn(3, 32, 12, 512, 64, device=machine.device, requires_grad=True)

    def gradient() -> torch.Tensor:
        return torch.autograd.grad(torch.nn.functional.scaled_dot_product_attention(*parts).square().sum(), parts)[0]

    first = gradient()
    assert all(torch.equal(first, gradient()) for _ in range(5))
