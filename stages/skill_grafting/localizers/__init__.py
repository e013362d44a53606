"""Ways to find a mask: what a localizer is (localizer.py), the table of all of them (registry.py), and each with its settings."""
