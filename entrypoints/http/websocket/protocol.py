"""WebSockets with limits: of frames at a time, of frames that start nothing, and of bytes."""

from __future__ import annotations

from typing import Any, ClassVar

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from antiphon.application.support.bytes_in_work import FREE_BYTES, HeldBytes
from antiphon.domain.errors import RequestError
from antiphon.entrypoints.http.wire.frame_queue import FrameBudget, frame_length
from antiphon.entrypoints.http.wire.protocol import Transport, refuse

CLOSE_TIMEOUT_S = 1
"""Seconds for a client to read why its connection is closed."""
SMALL_FRAGMENT = 1024
"""Bytes. A message in smaller fragments than this costs far more time than its length."""
FLOOD = "Too many frames that start nothing."


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Explains refused handshakes, reads frames in turns, and leaves closing to the app."""

    shared: ClassVar[Transport]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = bytearray()
        self._frame_rest = 0
        self._is_queued = False
        self._budget = FrameBudget()
        self._held: HeldBytes | None = None
        self._fragment_bytes = 0
        self._message_bytes = 0
        self.read_paused = True  # until the app asks for the first message
        self._app, self.app = self.app, self._run_app

    @classmethod
    def sharing(cls, shared: Transport) -> type[WebSocketProtocol]:
        """Return a subclass with this transport, since uvicorn creates the instances."""
        return type(cls.__name__, (cls,), {"shared": shared})

    def connection_lost(self, exc: Exception | None) -> None:
        self.shared.connections.remove(self.transport)
        # What has arrived of a message goes now, not when cyclic garbage is collected.
        self._unread.clear()
        self.conn.reader.discard()
        self.frames = []
        self._message_bytes = 0
        self._release()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        # The app knows about the shutdown: it lets runs end before it closes the connection.
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    def resume_writing(self) -> None:
        self.shared.connections.mark_progress(self.transport)
        super().resume_writing()

    def keepalive_timeout(self) -> None:
        if self.read_paused or self._is_queued:  # the answer may be among what is not read yet
            self.pong_timer = self.loop.call_later(self.ping_timeout or 0, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self._abort_soon()

    # --- reading in turns -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:
            self._receive_handshake(data)
        else:
            self._unread += data
            self.transport.pause_reading()
            self._read_on()

    def read_frame(self) -> bool:
        """Read one frame, or the part of it that has arrived. Return whether there is more."""
        if self.transport.is_closing():
            self._unread.clear()
        data = self._take_frame()
        if data:
            super().data_received(data)
            self._count_bytes()
        self._is_queued = bool(self._unread) and bool(data) and not self.read_paused
        if not self._is_queued and not self.read_paused:
            self._resume_reading()
        return self._is_queued

    async def receive(self) -> Any:
        # uvicorn's would read on as soon as the app takes a message, whatever is unread. The app
        # asks for the next message when it has decoded the last one.
        if self.queue.empty():
            self._message_bytes = 0
            self.read_paused = False
            self._count_bytes()
            self._read_on()
        return await self.queue.get()

    def _receive_handshake(self, data: bytes) -> None:
        super().data_received(data)
        if not self.handshake_initiated and self.conn.handshake_exc is not None:
            message = f"This is not a valid WebSocket handshake: {self.conn.handshake_exc}."
            refuse(self.transport, 400, message)

    def _read_on(self) -> None:
        """Read what has arrived; only when nothing of it is left, what the client sends next."""
        if self._is_queued or self.read_paused:
            return
        if self._unread:
            self._is_queued = True
            self.shared.frames.add(self)
        else:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _take_frame(self) -> bytes:
        """Return the bytes of the next frame that have arrived; none if its head is incomplete."""
        if not self._frame_rest:
            self._frame_rest = frame_length(self._unread) or 0
        taken = bytes(memoryview(self._unread)[: self._frame_rest])
        del self._unread[: len(taken)]
        self._frame_rest -= len(taken)
        return taken

    # --- limits -----------------------------------------------------------------------------------

    def handle_ping(self) -> None:
        if self._spend():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        is_answer = bytes(event.data) == self.pending_ping_payload
        if is_answer or self._spend():
            super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        if self._may_add(event):
            super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        if self._may_add(event):
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        if self._may_add(event):
            super().handle_bytes(event)

    def send_receive_event_to_app(self) -> None:
        # uvicorn logs a traceback for text that is not UTF-8.
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        self._fragment_bytes = 0
        if self.close_sent:
            self._spend()  # the client may have sent this before it read our close
            return
        message: Any = {"type": "websocket.receive", "bytes": data}
        if self.curr_msg_data_type == "text":
            try:
                message = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "Text frames must be UTF-8.")
                return
        self._message_bytes = len(data)
        self.queue.put_nowait(message)
        self.read_paused = True
        self.transport.pause_reading()

    def _may_add(self, frame: Frame) -> bool:
        self._fragment_bytes += len(frame.data)
        return frame.fin or len(frame.data) >= SMALL_FRAGMENT or self._spend()

    def _spend(self) -> bool:
        if self._budget.spend():
            return True
        self._fail(CloseCode.POLICY_VIOLATION, FLOOD)
        return False

    def _count_bytes(self) -> None:
        """Count what waits to be read, the unfinished message, and what the app decodes."""
        size = len(self._unread) + len(self.conn.reader.buffer)
        size += self._fragment_bytes + self._message_bytes
        if size <= FREE_BYTES or self.transport.is_closing():
            self._release()
            return
        if self._held is None:
            caller = self.scope.get("auth")
            tenant = getattr(caller, "tenant", "")
            self._held = self.shared.bytes_in_work.hold(tenant, "requests")
        try:
            self._held.resize(size)
        except RequestError as exc:
            self._fail(CloseCode.TRY_AGAIN_LATER, exc.message)

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    # --- closing ----------------------------------------------------------------------------------

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self._abort_soon()

    async def _run_app(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused: uvicorn would log this as an error

    def _fail(self, code: int, reason: str) -> None:
        if self.close_sent:
            self.transport.abort()
            return
        self._unread.clear()
        self._frame_rest = 0
        self.frames = []
        self.conn.fail(code, reason[:120])
        self.handle_parser_exception()

    def _abort_soon(self) -> None:
        # A closed transport still waits for its client to read all data.
        self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)
