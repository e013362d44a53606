"""What only a run of the pipeline needs: stages side by side, and the plan of a run."""
