"""The loader that services use: picks the engine of a manifest that fits this machine, checks it, or falls back loudly.

``api`` is the public face. Nothing here imports a backend, ctypes or numpy before it is needed.
"""
