"""The private copy of a model that steps read: made when the first step needs it, or while the model was hashed."""

from __future__ import annotations

import threading
from pathlib import Path

from orchestrator.errors import DIGEST_MISMATCH, EnginefarmError, Where
from orchestrator.models.model import Model


class Staging:
    """Call it for the folder with ``model.onnx`` and its external data. Safe to use from several threads."""

    def __init__(self, model: Model, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._made = model.staged is not None
        self._lock = threading.Lock()

    def __call__(self) -> Path:
        """Raises EnginefarmError: what load_model says, or DIGEST_MISMATCH when the model is no longer what the run started with."""
        with self._lock:
            if not self._made:
                from orchestrator.models.load import load_model

                again = load_model(self._model.path, stage=self._folder, deep=False)
                if again.digest != self._model.digest:
                    where = Where(file=str(self._model.path))
                    raise EnginefarmError(DIGEST_MISMATCH, "the model changed after the run began", where=where, fix="run it again")
                self._made = True
            return self._folder
