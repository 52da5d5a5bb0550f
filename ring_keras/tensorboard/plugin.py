"""The plugin that TensorBoard finds by the entry point `tensorboard_plugins`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import werkzeug
from tensorboard import plugin_util
from tensorboard.backend import http_util
from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from ring_keras.monitoring import records
from ring_keras.tensorboard import views
from ring_keras.tensorboard.reader import Reader, Run

__all__ = ["RingPlugin"]

_STATIC_DIR = Path(__file__).resolve().parent / "static"
# What the build puts there; see frontend/.
_FILES = {
    "/index.js": "text/javascript",
    "/index.css": "text/css",
    "/licenses.txt": "text/plain",
}
# A package that was built without npm, or a clone before `make board`, has none.
_MISSING = {
    **dict.fromkeys(_FILES, b""),
    "/index.js": (
        b"export function render() { document.body.textContent = "
        b"'ring_keras was built without this page. In the clone that it was built "
        b"in, `make board` adds it; that needs npm.'; }"
    ),
}


class RingPlugin(base_plugin.TBPlugin):
    """Serves the page and its data.

    Args:
        context: TensorBoard's.
    """

    plugin_name = records.PLUGIN

    def __init__(self, context: base_plugin.TBContext) -> None:
        self._reader = Reader(context.data_provider)

    def get_plugin_apps(self) -> dict[str, Any]:
        """By path."""
        data: dict[str, Callable[[Any, str], Any]] = {
            "/runs": self._runs,
            "/overview": self._overview,
            "/heat_map": self._heat_map,
            "/step": self._step,
        }
        return {
            **{path: self._static(path) for path in _FILES},
            **{path: _answering(view) for path, view in data.items()},
        }

    def is_active(self) -> bool:
        """TensorBoard itself sees whether a run has data of ours."""
        return False

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """Where the page begins."""
        return base_plugin.FrontendMetadata(
            es_module_path="/index.js", tab_name="Ring", disable_reload=True
        )

    def _static(self, path: str) -> Any:
        @wrappers.Request.application
        def serve(request: wrappers.Request) -> Any:
            file = _STATIC_DIR / path[1:]
            content = file.read_bytes() if file.exists() else _MISSING[path]
            return http_util.Respond(request, content, _FILES[path])

        return serve

    def _runs(self, request: Any, experiment: str) -> Any:
        context = plugin_util.context(request.environ)
        return self._reader.runs(context, experiment)

    def _overview(self, request: Any, experiment: str) -> Any:
        context = plugin_util.context(request.environ)
        losses = self._reader.losses(context, experiment, _name(request))
        return {
            **views.overview_view(self._run(request, experiment)),
            "losses": views.losses_view(losses),
        }

    def _heat_map(self, request: Any, experiment: str) -> Any:
        name = request.args.get("value", "duration")
        if name not in views.HEAT_MAPS:
            raise werkzeug.exceptions.BadRequest(
                f"`value` must be one of {', '.join(views.HEAT_MAPS)}. "
                f"Received: {name!r}"
            )
        return views.heat_map_view(self._run(request, experiment), name)

    def _step(self, request: Any, experiment: str) -> Any:
        step = request.args.get("step", "")
        if not step.isdecimal():
            raise werkzeug.exceptions.BadRequest(
                f"`step` must be a number. Received: {step!r}"
            )
        return views.step_view(self._run(request, experiment), int(step))

    def _run(self, request: Any, experiment: str) -> Run:
        context = plugin_util.context(request.environ)
        return self._reader.read(context, experiment, _name(request))


def _answering(view: Callable[[Any, str], Any]) -> Any:
    @wrappers.Request.application
    def serve(request: wrappers.Request) -> Any:
        experiment = plugin_util.experiment_id(request.environ)
        return http_util.Respond(request, view(request, experiment), "application/json")

    return serve


def _name(request: wrappers.Request) -> str:
    name: str = request.args.get("run", "")
    if not name:
        raise werkzeug.exceptions.BadRequest("`run` must name a run. Received: none")
    return name
