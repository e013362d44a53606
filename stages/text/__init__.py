"""Text tasks: rows, prompts, models that read labels off texts, their training and scores."""
