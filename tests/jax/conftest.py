"""JAX in the test's own process: on the CPU, as two devices. Set before anybody imports it."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
