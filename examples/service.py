"""A service around the loader: answers, says what it runs on, and is not healthy when it runs on something slower than it should.

python examples/service.py artifacts/lane/latest.json        # then: curl localhost:8080/health, /metrics, /lanes
"""

from __future__ import annotations

import json
import logging
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

try:
    from enginefarm_runtime import load  # type: ignore[import-not-found,unused-ignore]  # pip install enginefarm-runtime, or runtime export DIR
except ImportError:
    from orchestrator.portable.runtime.api import load  # a checkout of enginefarm

logging.basicConfig(level=logging.INFO)
# isolate: a plan that crashes takes a child process with it, not the service
MODEL = load(sys.argv[1] if len(sys.argv) > 1 else "artifacts/lane/latest.json", isolate=True, timeout=120)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/health":  # degraded: it answers, and somebody should look
            self.answer(503 if MODEL.degraded else 200, json.dumps(MODEL.choice.as_dict()), "application/json")
        elif self.path == "/metrics":
            self.answer(200, MODEL.metrics_text(), "text/plain; version=0.0.4")
        else:
            lanes = MODEL({"image": np.zeros((1, 3, 160, 320), np.float32)})["lanes"]
            self.answer(200, json.dumps({"shape": lanes.shape, "mean": float(lanes.mean())}), "application/json")

    def answer(self, code: int, text: str, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
