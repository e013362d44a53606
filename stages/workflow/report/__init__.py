"""Reports as data: tidy frames, and one YAML file a pipeline that says which tables, claims and figures are made of them."""
