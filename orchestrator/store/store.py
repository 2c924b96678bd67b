"""Stand-in until the room is built."""
from __future__ import annotations
import hashlib, json, os, shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from orchestrator.errors import DISK, EnginefarmError
from orchestrator.store.memo import Memo

class BlobLost(Exception):
    pass
class StoreCancelled(Exception):
    pass
class StoreUnwritable(EnginefarmError):
    pass

class Store:
    def __init__(self, root: Path, *, limit: int | None = None) -> None:
        self.root = root
        self.memo = Memo(root / "memo.json")
    def _blob(self, digest: str) -> Path:
        return self.root / "blobs" / digest[7:9] / digest[7:]
    def _result(self, kind: str, key: str) -> Path:
        return self.root / "results" / kind / key[7:9] / (key[7:] + ".json")
    def put(self, path: Path, *, digest: str | None = None) -> str:
        if digest is None:
            digest = "sha256:" + hashlib.sha256(Path(path).read_bytes()).hexdigest()
        dest = self._blob(digest)
        if not dest.exists():
            dest.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, str(dest) + ".tmp")
            os.rename(str(dest) + ".tmp", dest)
        return digest
    def path(self, digest: str) -> Path | None:
        path = self._blob(digest)
        return path if path.is_file() else None
    def take(self, digest: str, dest: Path) -> None:
        path = self._blob(digest)
        if not path.is_file():
            raise BlobLost(f"{digest[:19]} is missing")
        data = path.read_bytes()
        if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
            raise BlobLost(f"{digest[:19]} is damaged")
        dest.write_bytes(data)
    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        try:
            found = json.loads(self._result(kind, key).read_text())
        except (OSError, ValueError):
            return None
        if not all(self.path(blob) for blob in found["blobs"]):
            return None
        return dict(found["value"])
    def put_result(self, kind: str, key: str, value: Mapping[str, Any], blobs: Mapping[str, int]) -> None:
        path = self._result(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        tmp = path.with_suffix(f".tmp{os.getpid()}")
        tmp.write_text(json.dumps({"value": dict(value), "blobs": dict(blobs)}))
        tmp.rename(path)
    def has(self, kind: str, key: str) -> bool:
        return self._result(kind, key).exists()
    @contextmanager
    def exclusive(self, kind: str, key: str, *, cancel: Callable[[], bool], on_wait: Callable[[str], None]) -> Iterator[None]:
        yield
    @contextmanager
    def session(self) -> Iterator[None]:
        yield
