"""The picture of `digits.py`: how the losses fell, and how the ensemble classifies ten test images."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

INK, GRAY, PALE, BLUE, ORANGE = "#1f2933", "#616e7c", "#cbd2d9", "#1769aa", "#d9480f"


@dataclass
class History:
    """The losses of each epoch: of every member on the training set, and then of the ensemble on the test set."""

    train: list[np.ndarray] = field(default_factory=list)
    test: list[float] = field(default_factory=list)

    def add(self, train: np.ndarray, test: float) -> None:
        """Add one epoch."""
        self.train.append(train)
        self.test.append(test)


def draw(history: History, probabilities: np.ndarray, images: np.ndarray, labels: np.ndarray, path: Path) -> None:
    """Draw the losses beside ten predictions, and write the picture to `path`.

    Args:
        history: the losses.
        probabilities: from each member for each test image, `(members, n, classes)`.
        images: the test images, `(n, 8, 8, 1)`.
        labels: their classes, `(n,)`.
        path: the PNG file to write.
    """
    figure = Figure(figsize=(14, 6), layout="constrained")
    ((left, right),) = figure.subfigures(1, 2, squeeze=False, width_ratios=(2, 3), wspace=0.03)
    draw_losses(left.subplots(), history)
    chances = probabilities.mean(axis=0)[np.arange(len(labels)), labels]
    rows = np.concatenate([np.arange(5), np.argsort(chances)[:5]])
    draw_samples(right, probabilities[:, rows], images[rows], labels[rows])
    figure.savefig(path, dpi=120)


def draw_losses(axes: Axes, history: History) -> None:
    """Draw how the loss of every member and of the ensemble fell."""
    epochs = np.arange(1, len(history.test) + 1)
    members = axes.plot(epochs, np.stack(history.train), color=GRAY, linewidth=1, marker=".", markersize=3, alpha=0.6)
    members[0].set_label("each member, training")
    axes.plot(epochs, history.test, color=BLUE, linewidth=2.5, marker="o", markersize=4, label="ensemble, test")
    axes.set_title("Cross entropy", color=INK, fontsize=13)
    axes.set_xlabel("epoch", color=INK)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color=PALE, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, labelcolor=INK)


def draw_samples(figure: SubFigure, probabilities: np.ndarray, images: np.ndarray, labels: np.ndarray) -> None:
    """Draw ten images, each above the probabilities of its classes."""
    figure.suptitle("Five test images, and the five hardest (bars: ensemble, dots: members)", color=INK, fontsize=13)
    grid = figure.subplots(4, 5, height_ratios=(3, 2, 3, 2))
    cells = zip(grid[0::2].flat, grid[1::2].flat, np.swapaxes(probabilities, 0, 1), images, labels, strict=True)
    for top, bottom, members, image, label in cells:
        draw_image(top, image, label, members.mean(axis=0))
        draw_probabilities(bottom, members, label)


def draw_image(axes: Axes, image: np.ndarray, label: int, probabilities: np.ndarray) -> None:
    """Draw one image under its predicted class, and the true class if they differ."""
    guess = int(probabilities.argmax())
    text = f"{guess}: {probabilities[guess]:.1%}" + ("" if guess == label else f", is {label}")
    axes.imshow(image[..., 0], cmap="gray_r", interpolation="nearest")
    axes.set_title(text, color=BLUE if guess == label else ORANGE, fontsize=11)
    axes.set_axis_off()


def draw_probabilities(axes: Axes, members: np.ndarray, label: int) -> None:
    """Draw a bar for each class, blue for the true one, and a dot for the probability from each member."""
    classes = np.arange(members.shape[-1])
    axes.bar(classes, members.mean(axis=0), color=[BLUE if one == label else ORANGE for one in classes], alpha=0.75)
    axes.plot(classes, members.T, ".", color=INK, markersize=3)
    axes.set(ylim=(-0.03, 1.05), yticks=())
    axes.set_xticks(classes, classes, fontsize=8, color=INK)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
