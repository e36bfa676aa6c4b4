"""Keras 3 on several machines: `attach` switches compression on for a compiled model, on any of Keras' backends.

model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
link = sparsewire.keras.attach(model, total_steps=1000)     # every rank; all get rank 0's weights
model.fit(x, y, callbacks=[link])
"""

try:
    import keras as _keras  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"sparsewire.keras needs Keras 3 ({error.name} is missing): pip install 'sparsewire[keras]'", name=error.name
    ) from None

from .attach import attach
from .link import Link

__all__ = ["Link", "attach"]
