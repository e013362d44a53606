"""The project's code."""
