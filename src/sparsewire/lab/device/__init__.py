"""The path of devices, looked at: times and bytes of its kernels, its laws, parity with the host."""
