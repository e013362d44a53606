"""peft: one parameter-efficient method trained from the pretrained model, for the tasks of one seed.

A new method is a function that inserts its modules into a model, or gives what it trains there, and a line in METHODS.
Bottlenecks are written here because the `adapters` library (1.3.0) asks for transformers 4.57 and can't be imported
beside 5.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn import functional

from skill_grafting.grafting.region import Tensors
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.blocks import block_names
from skill_grafting.support.errors import ModelError
from skill_grafting.support.fields import HEAD
from skill_grafting.support.progress import progress
from stages.study.settings import PeftTraining, Settings
from stages.text.models.evaluation import Evaluation
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import dev_score
from stages.text.models.structure import groups_of
from stages.text.tasks.runtime import Runtime, numpy_generator, seeded_torch
from stages.text.training.finetuning import TrainingCell
from stages.text.training.grid import Point, Trained, search
from stages.text.training.trainer import Hooks, TrainPlan, batches_of, train
from stages.workflow.cells.scoring import study_sets, variant_rows, write_record
from stages.workflow.cells.training import chosen_point, open_training
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def train_efficiently(
    cell: TrainingCell, name: str, plans: list[TrainPlan], on_step: Callable[[], object] = lambda: None
) -> tuple[LabelModel, dict[str, Tensor], dict[str, Any]]:
    """Train a method such as lora_8 on rows["train"] by the plan that is best on dev.

    Gives the model with what was inserted, live, the parameters that were trained, and the record.  Every plan starts
    from the same random numbers.  Raises ModelError if the method can't be attached, TrainingError if every loss diverges.
    """
    method, _, number = name.partition("_")
    size = int(number or 0)
    purpose = ("peft", method, size, cell.task.name, cell.seed)

    def trained(point: Point) -> Trained[tuple[LabelModel, dict[str, Tensor], list[dict[str, float]]]]:
        plan = TrainPlan(**point)
        with seeded_torch(*purpose):
            model = cell.load(None)
            weights = attach(model, method, size)
            examples = model.encode(cell.rows["train"])
            batches = batches_of(model, examples, plan.batch_size, numpy_generator(*purpose))
            curve = train(batches, weights, plan, Hooks(on_step=on_step)).curve
        return Trained((model, weights, curve), dev_score(model, model.encode(cell.rows["dev"])))

    best = search(map(asdict, plans), trained)
    model, weights, curve = best.kept
    record = {"dev_accuracy": best.accuracy, "chosen": best.point, "grid": best.grid, "curve": curve}
    return model, weights, {"method": method, "size": size, **record}


def plans_of(settings: PeftTraining, chosen: Point) -> list[TrainPlan]:
    """A plan for each learning rate, of the steps and the batch size that fine-tuning chose."""
    same = {"steps": chosen["steps"], "batch_size": chosen["batch_size"], "optimizer": "adamw", "schedule": "linear"}
    same |= settings.model_dump(exclude={"learning_rates"})
    return [TrainPlan(learning_rate=rate, **same) for rate in settings.learning_rates]


def train_and_measure(name: str, task: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Train a method such as lora_8 on one cell and store its scores; returns a line for the log."""
    cell = open_training(task, seed, params.model, machine)
    graftable = read_anatomy(paths.PRETRAINED).region(params.graft.region, "graft.region").size
    plans = plans_of(params.peft.training, chosen_point(task, seed))
    with progress(f"peft {name} {task}-{seed}", sum(plan.steps for plan in plans), "step") as bar:
        model, weights, training = train_efficiently(cell, name, plans, bar.update)
    training |= trained_parameters(model, weights, graftable)
    evaluation = Evaluation(model, study_sets(task, seed, params.study.test_max, with_train=True), variants=1)
    with evaluation.progress(f"peft {name} {task}-{seed}"):
        evaluation.predict(name)
    predictions = evaluation.predictions()
    scores = variant_rows(predictions, task, seed, params.calibration.bins)
    sizes = {"trained": training["parameters"], "graftable": graftable}
    about = {"task": task, "seed": seed, **sizes, "training": training}
    write_record("peft", (name,), about, predictions, scores)
    return f"peft {name} {task}-{seed}: {evaluation.describe()}"


Activation = Callable[[Tensor], Tensor]
# Houlsby et al. (2019): normal with this deviation, cut off at twice it.
DOWN_STD = 0.01


class Bottleneck(nn.Module):
    """Gives x + up(activation(down(x))), of the shape of x, (..., width).

    Has 2 * width * size weights and width + size biases.  `down` starts at random from torch's global
    generator (seed it first) and everything else at 0, so that at first it gives x itself, bit for bit.
    """

    def __init__(self, width: int, size: int, activation: Activation) -> None:
        super().__init__()
        self.down, self.up, self.activation = nn.Linear(width, size), nn.Linear(size, width), activation
        nn.init.trunc_normal_(self.down.weight, std=DOWN_STD, a=-2 * DOWN_STD, b=2 * DOWN_STD)
        for zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zero)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states, shape kept."""
        return hidden + self.up(self.activation(self.down(hidden)))


# alpha = 2 * rank, as in the scripts of Hu et al. (2022) for RoBERTa: an update is scaled by 2 at any rank.
ALPHA_PER_RANK = 2
# Where the projections of a block stand, as paths within it: query and value (or both and the key in one), the attention's
# output, the feed-forward's.  A model is known by what its blocks consist of, not by its name: MiniLM is a BERT, Mistral a Llama.
LAYOUTS = {
    "BERT and RoBERTa": ("attention.self.query", "attention.self.value", "attention.output.dense", "output.dense"),
    "MPNet": ("attention.attn.q", "attention.attn.v", "attention.attn.o", "output.dense"),
    "DistilBERT": ("attention.q_lin", "attention.v_lin", "attention.out_lin", "ffn.lin2"),
    "ALBERT": ("attention.query", "attention.value", "attention.dense", "ffn_output"),
    "DeBERTa": ("attention.self.query_proj", "attention.self.value_proj", "attention.output.dense", "output.dense"),
    "ModernBERT": ("attn.Wqkv", "attn.Wo", "mlp.Wo"),
    "GPT-2": ("attn.c_attn", "attn.c_proj", "mlp.c_proj"),
    "GPT-NeoX": ("attention.query_key_value", "attention.dense", "mlp.dense_4h_to_h"),
    "OPT": ("self_attn.q_proj", "self_attn.v_proj", "self_attn.out_proj", "fc2"),
    "Llama": ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj"),
}


def attach(model: LabelModel, method: str, size: int) -> dict[str, Tensor]:
    """Insert a method's modules into a freshly loaded model; gives the live trained parameters, in its order.

    Those are the inserted ones, or the model's own that the method trains, and a new head, if there is one; everything
    else is frozen.  The logits stay as they are until training.  Random starts come from torch's global generator: seed
    it first.  Raises ModelError if the model is built in no known way.
    """
    trained = {id(parameter) for parameter in METHODS[method](model.model, size)}
    names = {name for name, parameter in model.parameters().items() if id(parameter) in trained}
    return model.train_only(names | _head(model))


def trained_parameters(model: LabelModel, trained: Tensors, graftable: int) -> dict[str, float]:
    """The size of what a method trains: `parameters` without a new head, `with_head`, and `share`.

    share: parameters / graftable, comparable with the sparsity of a graft, which doesn't count the head either.
    """
    head = _head(model)
    sizes = {name: tensor.numel() for name, tensor in trained.items()}
    parameters = sum(size for name, size in sizes.items() if name not in head)
    return {"parameters": parameters, "with_head": sum(sizes.values()), "share": parameters / graftable}


def _head(model: LabelModel) -> set[str]:
    return {name for name, group in groups_of(model).items() if group == HEAD}


def _lora(model: "PreTrainedModel", rank: int) -> list[nn.Parameter]:
    """Low-rank updates (Hu et al., 2022): W + 2 * B A for each query and value projection W, A random and B zero at first.

    Where query, key and value are one matrix, as in GPT-2, the update is one of that whole matrix.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets = _projections(model, slice(-2))
    # GPT-2 stores its matrices the other way round
    transposed = not isinstance(model.get_submodule(targets[0]), nn.Linear)
    config = LoraConfig(r=rank, lora_alpha=ALPHA_PER_RANK * rank, target_modules=targets, fan_in_fan_out=transposed)
    inject_adapter_in_model(config, model)
    return [parameter for name, parameter in model.named_parameters() if ".lora_" in name]


def _bottlenecks(model: "PreTrainedModel", size: int, which: slice, activation: Activation) -> list[nn.Parameter]:
    """A bottleneck of this width right behind each of these projections, before dropout, residual sum and (in BERT) norm.

    A hook rather than a module around the projection: every other parameter keeps its name, and those of the bottleneck
    become `<projection>.adapter.*`.
    """
    projections = [model.get_submodule(name) for name in _projections(model, which)]
    for projection in projections:
        projection.adapter = Bottleneck(model.config.hidden_size, size, activation).to(projection.weight.device)
        projection.register_forward_hook(lambda module, _inputs, output: module.adapter(output))
    return [parameter for projection in projections for parameter in projection.adapter.parameters()]


def _norms(model: "PreTrainedModel", _size: int) -> list[nn.Parameter]:
    """Scales and shifts of all norms in the blocks: modules whose own parameters are vectors (LN-tuning, Qi et al., 2022)."""
    blocks = tuple(f"{block}." for block in block_names(model))
    inside = [module for name, module in model.named_modules() if name.startswith(blocks)]
    owned = [[*module.parameters(recurse=False)] for module in inside]
    found = [parameter for own in owned if all(one.dim() == 1 for one in own) for parameter in own]
    if not found:
        raise ModelError(f"{type(model).__name__}: its layers have no norms with parameters to train")
    return found


def _projections(model: "PreTrainedModel", which: slice) -> list[str]:
    """Names of these of the projections in every block, by the first layout that each of the model's repeated blocks has."""
    modules, blocks = dict(model.named_modules()), block_names(model)
    for layout in LAYOUTS.values():
        fitting = [name for name in modules if all(f"{name}.{path}" in modules for path in layout)]
        if all(any(f"{name}.".startswith(f"{block}.") for name in fitting) for block in blocks):
            return [f"{name}.{path}" for name in fitting for path in layout[which]]
    raise ModelError(
        f"{type(model).__name__}: its layers are built in no way that parameter-efficient methods know; known: {', '.join(LAYOUTS)}"
    )


# method(transformers model, size) inserts it, without changing any logit, and gives the parameters that it trains
METHODS: dict[str, Callable[["PreTrainedModel", int], list[nn.Parameter]]] = {
    "lora": _lora,
    # behind attention and feed-forward (Houlsby et al., 2019)
    "houlsby": partial(_bottlenecks, which=slice(-2, None), activation=functional.gelu),
    # behind the feed-forward alone (Pfeiffer et al., 2021)
    "pfeiffer": partial(_bottlenecks, which=slice(-1, None), activation=functional.relu),
    "norms": _norms,
}


@stage
def main(params: Settings, machine: Runtime, method: str, seed: int) -> None:
    """Train, and measure on test and training rows."""
    for task in params.peft.tasks:
        print(train_and_measure(method, task, seed, params, machine))
