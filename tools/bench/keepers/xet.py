"""Content-defined chunks: Hugging Face's own client, with a directory in place of their servers."""

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from .keeper import Model, placed

hf_xet: Any = import_module("hf_xet")

_LISTING: Final = "files.json"
"""What a model's revision lists in place of its files: their hashes and lengths."""


class Xet:
    """One commit for each model, as pushes would be; it looks for chunks in all that was pushed before."""

    keeps_files: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root.resolve()
        self._session = hf_xet.XetSession()
        self._place = f"local://{self._root / 'xet'}"

    def put(self, models: Sequence[Model]) -> None:
        """See :class:`Keeper`."""
        (self._root / "xet").mkdir()
        for model in models:
            listing = {file: [hashed, length] for file, hashed, length in self._pushed(model)}
            placed(self._root / "revisions", model, _LISTING).write_text(json.dumps(listing))

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """See :class:`Keeper`."""
        with self._session.new_file_download_group(endpoint=self._place) as group:
            for model in models:
                listing = json.loads((self._root / "revisions" / model.name / _LISTING).read_text())
                for file, (hashed, length) in listing.items():
                    group.start_download_file(hf_xet.XetFileInfo(hashed, length), str(placed(folder, model, file)))

    def _pushed(self, model: Model) -> Iterator[tuple[str, str, int]]:
        """Each file, its hash, and its length."""
        with self._session.new_upload_commit(endpoint=self._place) as commit:
            begun = {file: commit.start_upload_file(str(Path(model.path) / file)) for file in model.files()}
        for file, upload in begun.items():
            found = upload.result().xet_info
            yield file, found.hash, found.file_size
