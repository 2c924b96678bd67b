"""enginefarm: builds, checks and names TensorRT engines for many targets."""

__version__ = "0.1.0"
