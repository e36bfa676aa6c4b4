"""Benchmarks and the demo: time of kernels and training steps, size and error of codecs."""
