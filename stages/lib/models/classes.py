"""The classes of transformers that read labels off a model, by `model.mode`, and the names of their parameters."""

from typing import Any

CLASSES = {
    "standard": "AutoModelForSequenceClassification",
    "prompt": "AutoModelForMaskedLM",
    "autoregressive": "AutoModelForCausalLM",
    "generative": "AutoModelForCausalLM",
}


def named_weights(model: Any) -> dict[str, Any]:
    """Every parameter of a model by the name that `save_pretrained` writes it under: where two parts share one, that in the backbone.

    torch takes the first part's name, and XLM-RoBERTa has its vocabulary head before the embeddings.
    """
    inside = f"{getattr(model, 'base_model_prefix', '')}."
    names: dict[Any, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight not in names or (name.startswith(inside) and not names[weight].startswith(inside)):
            names[weight] = name
    return {name: weight for weight, name in names.items()}
