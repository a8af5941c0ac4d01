"""The requests known at this position; standing on one selects it."""

from __future__ import annotations

from ..messages import RequestPicked
from ..presenters.blocks import PoolView
from ..presenters.spans import Row
from ..presenters.tables import request_order, request_row
from ..session import Scene
from .lines import LineList, note


class RequestList(LineList):
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._scene: Scene | None = None
        self._order: list[str] = []

    def show(self, scene: Scene) -> None:
        before, self._scene = self._scene, scene
        state = scene.state
        if before is None or _requests(before) != _requests(scene):
            self._order = request_order(state) if state else []
            live = sum(1 for _ in state.unfinished()) if state else 0
            done = len(self._order) - live
            self.border_title = f"requests · {live} at work, {done} done · tokens, blocks, answer"
        is_known = state is not None and scene.request in state.requests
        cursor = self._order.index(scene.request) if is_known and scene.request else None
        self.set_lines(len(self._order), cursor, (_requests(scene), _tables(scene), scene.names))

    def row(self, index: int, width: int) -> Row:
        if self._scene is None or self._scene.state is None:
            return note("…")
        view = PoolView(self._scene.state, self._scene.blame, self._scene.request)
        return request_row(view, self._order[index], self._scene.names)

    def stood_on(self, index: int, row: Row) -> None:
        self.picked(index, row)

    def picked(self, index: int, row: Row) -> None:
        if row.request is not None:
            self.post_message(RequestPicked(row.request))


def _requests(scene: Scene) -> object:
    return scene.state.requests if scene.state else None


def _tables(scene: Scene) -> object:
    return scene.state.pool().tables if scene.state else None
