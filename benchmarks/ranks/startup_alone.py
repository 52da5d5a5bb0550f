"""Keras without any package that distributes."""

from benchmarks.ranks.startup import Steps, fit_steps, import_tensorflow, serve_startup

__all__ = ["serve"]


def serve(socket_path: str, rank: int, size: int) -> None:
    def build() -> Steps:
        return fit_steps(rank)

    serve_startup(socket_path, rank, ["tensorflow"], import_tensorflow, lambda: build)
