"""The one type that travels, `Sparse`, and small tools: varints, keys, masks, state files, tensors of frameworks."""
