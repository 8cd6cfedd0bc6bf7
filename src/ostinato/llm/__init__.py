"""Language models: checkpoints, tokens and text, one step graph per model, and its engine."""
