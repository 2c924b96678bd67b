"""Content-addressed cache: blobs by digest, results by key."""

from orchestrator.store.faults import BlobLost, StoreCancelled, StoreUnwritable
from orchestrator.store.store import DEFAULT_LIMIT, Store

__all__ = ["DEFAULT_LIMIT", "BlobLost", "Store", "StoreCancelled", "StoreUnwritable"]
