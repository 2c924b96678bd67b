"""Content-addressed cache: blobs by digest, results by key."""

from orchestrator.store.store import BlobLost, Store, StoreCancelled, StoreUnwritable

__all__ = ["BlobLost", "Store", "StoreCancelled", "StoreUnwritable"]
