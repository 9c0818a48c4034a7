"""What a directory holds that can be migrated."""

from pathlib import Path

from store.errors import Incompatible, NotFound

from .directories import HuggingFace, TorchCheckpointing, is_checkpoint_of_trainer, items_in
from .files import Lightning, StepFiles
from .rust import RustStore
from .source import Source


def source_at(path: Path, python: Path | None) -> Source:
    """The source that a directory is.

    Args:
        path: a store of the Rust engine, a run's directory of Hugging Face's trainer or of Lightning, a directory of
            checkpoints of ``torch_checkpointing``, or one of files of ``torch.save``: looked for in that order. Where
            checkpoints are directories, one of these will do.
        python: an interpreter that has the Rust engine, for a store of that.

    Raises:
        NotFound: it is nothing of these.
        Incompatible: a store of the Rust engine, and no interpreter that can read it.
        OSError: it cannot be looked into.
    """
    if not path.is_dir():
        raise NotFound(f"there is no directory {path}", path=str(path))
    if (path / "manifest.json").is_file() and (path / "snapshots").is_dir():
        return _rust(path, python)
    directories = sorted(each for each in path.iterdir() if each.is_dir())
    if is_checkpoint_of_trainer(path):
        return HuggingFace([path])
    if runs := [each for each in directories if each.name.startswith("checkpoint-")]:
        return HuggingFace(runs)
    if lightning := sorted(each for each in path.rglob("*.ckpt") if each.is_file()):
        return Lightning(lightning, path)
    if saved := [each for each in directories if items_in(each)]:
        return TorchCheckpointing(saved)
    if len(items_in(path)) > 1:  # a file ``step_0.pt`` alone is more likely a checkpoint itself
        return TorchCheckpointing([path])
    if files := sorted(each for each in path.iterdir() if each.suffix in {".pt", ".pth"} and each.is_file()):
        return StepFiles(files, path)
    raise NotFound(
        f"{path} holds no checkpoints that can be migrated: neither a store of the Rust moonclip, nor checkpoint-*"
        " directories, *.ckpt files, directories of torch_checkpointing, or *.pt files",
        path=str(path),
    )


def _rust(path: Path, python: Path | None) -> RustStore:
    if python is None:
        raise Incompatible(
            f"{path} is a store of the Rust moonclip, whose package has the name of this one; install it and torch into"
            " an environment of their own, and name its interpreter with --python",
            path=str(path),
        )
    return RustStore(path, python)
