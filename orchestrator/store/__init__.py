"""Content-addressed cache: blobs by digest, results by key."""

from orchestrator.store.faults import BlobLost, StoreCancelled, StoreUnwritable
from orchestrator.store.store import DEFAULT_LIMIT, Store
from orchestrator.store.sweep import Entry, Report

__all__ = ["DEFAULT_LIMIT", "BlobLost", "Entry", "Report", "Store", "StoreCancelled", "StoreUnwritable"]
