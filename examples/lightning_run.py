"""Lightning on a store: train, kill it whenever you like, and run it again: it goes on where it was.

    python examples/lightning_run.py runs/lightning            # trains; again: goes on from the branch's tip
    python examples/lightning_run.py runs/lightning --from step:40 --branch lr3

Needs the extra ``lightning``. Takes seconds on a CPU.
"""

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from moonclip import Keep
from moonclip.integrations.lightning import Generators, StoreCheckpoint, StoreIO


class Net(pl.LightningModule):
    """A few layers that learn a sum."""

    def __init__(self, width: int = 32, lr: float = 1e-2) -> None:  # noqa: ARG002 - a hyper-parameter
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Dropout(0.1), torch.nn.Linear(width, 1))

    def _loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[0].sum(1, keepdim=True))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Loss of a batch."""
        loss = self._loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Loss of a batch that is not trained on."""
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def main() -> None:
    """Train, from wherever the store says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--from", dest="rev", help="a revision to go on from: step:40, main~2, best")
    parser.add_argument("--branch", help="the branch to save on; with --from it is made there")
    given = parser.parse_args()

    pl.seed_everything(0)
    data = torch.randn(160, 8)
    train = DataLoader(TensorDataset(data[:128]), batch_size=8, shuffle=True)
    valid = DataLoader(TensorDataset(data[128:]), batch_size=32)

    io = StoreIO(given.directory / "store", keep=Keep(last=3, every=20, best=("val_loss", "min", 2)))
    trainer = pl.Trainer(
        max_epochs=5,
        plugins=[io],
        callbacks=[StoreCheckpoint(8, monitor="val_loss"), Generators()],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Net(), train, valid, ckpt_path=io.resume(given.rev, branch=given.branch))
    trainer.validate(dataloaders=valid, ckpt_path="best")
    for snapshot in io.manager.list_snapshots():
        print(snapshot.id[:8], snapshot.branch, snapshot.step, *snapshot.tags, snapshot.metadata.get("val_loss", ""))
    io.close()


if __name__ == "__main__":
    main()
