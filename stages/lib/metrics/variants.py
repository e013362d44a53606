"""The models a cell is judged by; the same words in files, tables and legends."""

PRETRAINED = "pretrained"
FINETUNED = "finetuned"
MOVEMENT_GRAFTED = "movement_grafted"
GRAFTED = "grafted"
VARIANTS = (PRETRAINED, FINETUNED, MOVEMENT_GRAFTED, GRAFTED)
