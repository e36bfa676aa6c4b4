"""Measuring: what the kernels cost, what the codecs save."""
