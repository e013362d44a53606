"""The classes of transformers that read labels off a model, by `model.mode`."""

CLASSES = {
    "standard": "AutoModelForSequenceClassification",
    "prompt": "AutoModelForMaskedLM",
    "autoregressive": "AutoModelForCausalLM",
    "generative": "AutoModelForCausalLM",
}
