"""The trainings of `benchmarks/accuracy.py`: the lab's, and a perceptron on MNIST."""

from __future__ import annotations

from sparsewire.lab.tasks.images import mnist, perceptron
from sparsewire.lab.tasks.task import Task
from sparsewire.lab.tasks.workloads import WORKLOADS

TASKS = {
    "mnist": Task(
        "MLP 784-256-256-10, MNIST, SGD", mnist, perceptron, "accuracy", False, 800, 32, (0.05, 0.1, 0.2, 0.4)
    ),
    "text": WORKLOADS["gpt-text"].task,
    "cifar": WORKLOADS["resnet20-cifar"].task,
    "lstm": WORKLOADS["lstm-wikitext"].task,
}
