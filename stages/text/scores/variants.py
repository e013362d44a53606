"""Names of the models of a cell, the same in files, tables and legends."""

PRETRAINED = "pretrained"
FINETUNED = "finetuned"
MOVEMENT_GRAFTED = "movement_grafted"
GRAFTED = "grafted"
# the pretrained model with a scale and biases of its label words, fitted on the training rows; not of a new head
LABEL_WORDS = "label_words"
VARIANTS = (PRETRAINED, FINETUNED, MOVEMENT_GRAFTED, GRAFTED)

# The controls of a graft's calibration, both fitted on dev: the fine-tuned model at one temperature, and all
# weights between the pretrained and the fine-tuned model.
TEMPERED = "finetuned_tempered"
WISE_FT = "wise_ft"
CONTROLS = (TEMPERED, WISE_FT)
# the graft at a temperature of its own
GRAFT_TEMPERED = "grafted_tempered"

# models between the pretrained model and the graft, `wise_graft_0.25`
WISE_GRAFT = "wise_graft"
