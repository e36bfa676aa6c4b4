"""What is trained: data, models, optimizers and scores."""
