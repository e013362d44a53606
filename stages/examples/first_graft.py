"""A first graft, in less than a minute on a CPU: which parameters carry what a small network learned in fine-tuning?

pip install . matplotlib            # in the project's folder; make setup has done it in .venv
python stages/examples/first_graft.py [FIGURE.png]
"""

# %% The task: which way do the stripes of a noisy image run?  Pretrained on four directions, fine-tuned on another question.
import copy
import sys

import matplotlib
import torch
from torch import nn

import skill_grafting as sg

matplotlib.use("Agg")
import matplotlib.pyplot as plt

torch.manual_seed(0)
torch.set_num_threads(1)  # more threads only slow down so small a network
ACROSS, DOWN = torch.arange(12.0), torch.arange(12.0).unsqueeze(1)


def stripes(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images (count, 1, 12, 12), the direction of their stripes (0 to 3), and whether these are narrow (1) or wide (0)."""
    direction, narrow = torch.randint(0, 4, (count,)), torch.randint(0, 2, (count,))
    angle, phase = direction * torch.pi / 4, torch.rand(count) * 6
    wave = torch.where(narrow == 1, 1.5, 1.0).view(-1, 1, 1)
    places = ACROSS * angle.cos().view(-1, 1, 1) + DOWN * angle.sin().view(-1, 1, 1)
    return (
        ((wave * places + phase.view(-1, 1, 1)).sin() + 0.5 * torch.randn(count, 12, 12)).unsqueeze(1),
        direction,
        narrow,
    )


class Network(nn.Module):
    """Two convolutions and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.head = nn.Linear(32, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.body(images).flatten(1))


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, steps: int) -> nn.Module:
    """The model after so many steps of Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows = torch.arange(64) + 64 * step % len(images)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return model


images, direction, narrow = stripes(2048)
base = train(Network(), images, direction, 400)
tuned = train(copy.deepcopy(base), images, narrow, 200)

# %% Find grafts of several sizes by three localizers, and measure the network with them on new images.
test_images, _, test_labels = stripes(1000)


def accuracy(model: nn.Module) -> float:
    """In %."""
    with torch.no_grad():
        return 100 * float((model(test_images).argmax(1) == test_labels).float().mean())


def loss(model: nn.Module) -> torch.Tensor:
    """On 128 of the training images."""
    return nn.functional.cross_entropy(model(images[:128]), narrow[:128])


sizes, scores = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0], {}
for name, options in {"random": {}, "movement": {}, "learned": {"loss": loss}}.items():
    for sparsity in sizes:
        mask = sg.localize(base, tuned, sparsity=sparsity, method=name, **options)
        with sg.grafted(base, tuned, mask):
            scores.setdefault(name, []).append(accuracy(base))
nothing = sg.graft(base, tuned, sg.GraftMask.empty(mask.region))
print(f"fine-tuned {accuracy(tuned):.1f} %, pretrained with its head {accuracy(nothing):.1f} %")

# %% The figure.
for name, row in scores.items():
    plt.plot([100 * size for size in sizes], row, marker="o", label=f"graft: {name}")
plt.axhline(accuracy(tuned), color="black", label="fine-tuned")
plt.axhline(accuracy(nothing), color="gray", linestyle="--", label="pretrained, with the fine-tuned head")
plt.xscale("log")
plt.xlabel(f"parameters grafted, % of {mask.region.size:,}")
plt.ylabel("accuracy on new images, %")
plt.legend()
plt.title("How much of the fine-tuning gain does a graft bring?")
plt.savefig(sys.argv[1] if len(sys.argv) > 1 else "first_graft.png", dpi=150)
for name, row in scores.items():
    print(f"{name:9}", *(f"{100 * size:g} %: {score:.1f}" for size, score in zip(sizes, row, strict=True)))
