"""Makes the demo model: synthetic data, tokenizer merges, training, export and evaluation."""
