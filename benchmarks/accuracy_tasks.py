"""The trainings of `benchmarks/accuracy.py`: the lab's, and a perceptron on MNIST."""

from __future__ import annotations

from sparsewire.lab.images import mnist, perceptron
from sparsewire.lab.tasks import Task
from sparsewire.lab.workloads import WORKLOADS

TASKS = {
    "mnist": Task(
        "MLP 784-256-256-10, MNIST, SGD", mnist, perceptron, "accuracy", False, 800, 32, (0.05, 0.1, 0.2, 0.4)
    ),
    "text": WORKLOADS["gpt-text"].task,
    "cifar": WORKLOADS["resnet20-cifar"].task,
    "lstm": WORKLOADS["lstm-wikitext"].task,
}
