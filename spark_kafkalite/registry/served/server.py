"""The server of the embedded tree for other processes, in ZooKeeper's client protocol.

Kazoo, ZooKeeper's shell, registry consumers and tools use it like a ZooKeeper of one server.

A server has a thread and an event loop of its own. Its loop only cuts frames and sends answers, in slices, so that no
number of them keeps a client waiting. Bodies are read, and requests run, in the registry's writer thread
(``registry.embedded``), in the order in which a connection sent them. An answer or event therefore leaves after the
commit of what it shows, and in the order of the transactions; the zxid in an answer is that of the tree when the
request was run.

Sessions are the registry's; their numbers only grow, also across crashes. In a registry that keeps them
(``kafkalite registry``) they outlive the process, with their ephemeral nodes, and get their whole time from the moment
on at which the next process serves. In a broker they end with it: a client that comes back with a session of an earlier
process gets the answer that it has expired. Watches and identities belong to a connection; clients leave them again
when they come back (SetWatches, auth).

A session ends when its timeout passes without a word. What is not held against it: time in which this process stood
still, and waiting for the registry.

With ``digest`` (``user:password``) every connection must authenticate as that user. Until then its session is opened,
pings are answered, and all other requests get NoAuth. After AUTHENTICATE_S its session ends, so that sessions of others
keep no broker out.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from spark_kafkalite.errors import FrameError, RegistryError
from spark_kafkalite.net.channel import PlainChannel
from spark_kafkalite.net.listening import ListeningSocket, bind
from spark_kafkalite.net.outbox import ROOM_BYTES
from spark_kafkalite.quiet_log import QuietLog
from spark_kafkalite.registry import store
from spark_kafkalite.registry.served import four_letter_words, jute, requests
from spark_kafkalite.registry.served.answer_queue import AnswerQueue
from spark_kafkalite.registry.served.connection import (
    MAX_HELD_BYTES,
    Request,
    TreeConnection,
)
from spark_kafkalite.registry.served.limits import Limit
from spark_kafkalite.registry.served.sessions import ServedSession, Sessions, negotiated_ms, new_password
from spark_kafkalite.registry.store import WatchEvent
from spark_kafkalite.registry.tree.acl import PROCESS, Identity, digest_identity
from spark_kafkalite.registry.tree.embedded import EmbeddedRegistry
from spark_kafkalite.registry.tree.tree import KeptSession
from spark_kafkalite.slices import Slices, Work
from spark_kafkalite.wire.frame import framed

_LOG = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 1000
MAX_SESSIONS: Final = 10_000
# All connections together: requests that have not been answered.
MAX_BUFFERED_BYTES: Final = 64 * 1024 * 1024
MAX_WATCHES_OF_SESSION: Final = 50_000
MAX_WATCHES: Final = 200_000

_BACKLOG: Final = 512
_TICK_S: Final = 0.1
# Sessions that end in one tick; the others end in the next ones.
_EXPIRED_AT_ONCE: Final = 200
_RETRY_EXPIRY_S: Final = 1.0
_SCRATCH_BYTES: Final = 256 * 1024
_START_TIMEOUT_S: Final = 30.0
_PING_XID: Final = -2
_AUTH_XID: Final = -4
_AUTH_FAILED: Final = -115
_PASSWORD_BYTES: Final = 16


class TooManyWatches(RegistryError):
    """A session, or all together, have left more watches than are kept."""


class _Ran:
    """What running a request gave: a body and events or an error, and the zxid of the tree then. None: postponed."""

    __slots__ = ("answer", "error", "zxid")

    def __init__(self, answer: requests.Answer | None, error: Exception | None, zxid: int) -> None:
        self.answer = answer
        self.error = error
        self.zxid = zxid


class TreeServer:
    """A listener on the tree of ``registry``, in a thread of its own."""

    def __init__(
        self,
        registry: EmbeddedRegistry,
        *,
        digest: str | None = None,
        max_connections: int = MAX_CONNECTIONS,
        serves_brokers: bool = False,
    ) -> None:
        """``max_connections`` for a process that has descriptors for fewer.

        ``serves_brokers``: the clients are the brokers of a cluster, and not one broker's. They may use the private
        nodes that a broker has left here when the registry was its own: those clients that have authenticated, where a
        digest is set, else all.
        """
        self.registry = registry
        self._of_brokers: set[Identity] = {PROCESS} if serves_brokers else set()
        # What every session may count as.
        self._of_all = set() if digest else self._of_brokers
        self._max_connections = max_connections
        self._identity = digest_identity(digest) if digest else None
        self._quiet = QuietLog.of_states(_LOG)
        self._connection_limit = Limit("connections", max_connections, "end clients that are not needed")
        self._session_limit = Limit("sessions", MAX_SESSIONS, "end clients that are not needed")
        # Used in the writer thread.
        own = "have that client watch fewer nodes, or whole trees (addWatch); one of a tree counts as one"
        self._session_watch_limit = Limit("watches", MAX_WATCHES_OF_SESSION, own)
        self._watch_limit = Limit("watches", MAX_WATCHES, "end clients, or have them watch fewer nodes")
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._stopping: asyncio.Event
        self._connections: set[TreeConnection] = set()
        # Connections that hold requests, among them closed ones, and how many bytes they hold together.
        self._holders: set[TreeConnection] = set()
        self.request_bytes = 0
        self._sessions = Sessions(_TICK_S, time.monotonic(), must_authenticate=digest is not None)
        self._outbox: AnswerQueue
        # Connections whose buffers hold something to take.
        self._in_turn: deque[TreeConnection] = deque()
        self._taking = False
        self._slices: Slices
        self._received = 0
        # All connections receive into the one, and gather what they send in the other.
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.room = memoryview(bytearray(ROOM_BYTES))

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that serves, once started."""
        return self._loop

    # Life -------------------------------------------------------------------------------------------------------------

    def start(self, host: str, port: int) -> int:
        """Listen, and return the port (a free one for port 0). Raises OSError."""
        started: Future[int] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(host, port, started)),
            name="kafkalite-registry-listener",
            daemon=True,
        )
        self._thread.start()
        return started.result(_START_TIMEOUT_S)

    def close(self) -> None:
        """Stop listening and close all connections; their sessions go on until the registry is closed. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            store.call_in_loop(self._loop, self._stopping.set)
            thread.join()
            self.registry.after_answers.remove(self._outbox.send_soon)

    async def _serve(self, host: str, port: int, started: Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._slices = Slices(self._loop)
        self._stopping = asyncio.Event()
        self._outbox = AnswerQueue(self._loop, self._slices, self._connections)
        self.registry.after_answers.append(self._outbox.send_soon)
        now_s = time.monotonic()
        for session_id, kept in self.registry.kept_sessions.items():
            self._sessions.add(session_id, kept.timeout_ms, kept.password, now_s, is_new=False)
            if self._of_all:
                self._forget_rights(session_id)
        try:
            listening = ListeningSocket(self._loop, bind(host, port), self._accepted, self._cannot_accept)
            listening.start(_BACKLOG)
        except OSError as error:
            self._thread = None
            self.registry.after_answers.remove(self._outbox.send_soon)
            started.set_exception(error)
            return
        ticking = self._loop.create_task(self._tick())
        started.set_result(listening.port)
        await self._stopping.wait()
        ticking.cancel()
        listening.close()
        for connection in list(self._connections):
            connection.close("the server stops")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.monotonic()
            for session in self._sessions.tick(now_s)[:_EXPIRED_AT_ONCE]:
                connection: TreeConnection | None = session.connection
                if connection is not None and connection.waits_for_server:
                    session.touch(now_s)
                else:
                    self._expire(session)
            self._outbox.count_sent()
            has_room = self.has_room_for_answers
            for connection in list(self._connections):
                if connection.overdue(now_s):
                    connection.close("it opened no session, or did not end, in time")
                elif connection.stalled(now_s) and not has_room:
                    connection.close("it does not read its answers, and there is no room left for those of others")
                else:
                    connection.retry_postponed()

    # Connections ------------------------------------------------------------------------------------------------------

    def _accepted(self, connected: socket.socket, address: tuple[str, int]) -> None:
        peer = f"{address[0]}:{address[1]}"
        if len(self._connections) >= self._max_connections:
            self._connection_limit.refused(self._max_connections)
            connected.close()
            return
        try:
            channel = PlainChannel(connected)
        except OSError as error:
            # The peer may have closed the connection already.
            connected.close()
            _LOG.debug("registry connection of %s lost at once: %s", peer, error.strerror)
            return
        self._connections.add(TreeConnection(self, channel, peer))
        self._connection_limit.note(len(self._connections))

    def _cannot_accept(self, level: int, error: OSError) -> None:
        self._quiet.log(level, "accept", "the registry cannot accept a connection: %s", error.strerror)

    def connection_lost(self, connection: TreeConnection) -> None:
        """Forget a connection, and what belonged to it."""
        self._connections.discard(connection)
        session = connection.session
        if session is not None and session.connection is connection:
            session.connection = None
            self._forget_rights(session.session_id)
            if not session.is_trusted and self._sessions.find(session.session_id, session.password) is session:
                self._expire(session)

    def _forget_rights(self, session_id: int) -> None:
        tree = self.registry.tree

        def forget() -> None:
            tree.drop_watches(session_id)
            if session_id in tree.identities:
                tree.identities[session_id] = set(self._of_all)

        self.registry.submit(forget, Future())

    def log_closed(self, connection: TreeConnection, reason: str) -> None:
        _LOG.debug("closed the registry connection of %s: %s", connection.peer, reason)

    def count_requests(self, connection: TreeConnection, more_bytes: int) -> None:
        """Count bytes of requests; if all connections hold too many, have the one with the most drop its requests."""
        self.request_bytes += more_bytes
        if connection.buffered_bytes:
            self._holders.add(connection)
        else:
            self._holders.discard(connection)
        if more_bytes > 0 and self.request_bytes > MAX_BUFFERED_BYTES:
            most = max(self._holders, key=lambda holder: holder.droppable_bytes)
            most.drop_requests(
                f"all connections together hold more than {MAX_BUFFERED_BYTES} bytes of requests, it the most"
            )

    @property
    def has_room_for_answers(self) -> bool:
        return self._outbox.has_room

    # Requests ---------------------------------------------------------------------------------------------------------

    def advance_soon(self, connection: TreeConnection) -> None:
        """Have a connection take its frames when it is its turn."""
        if not connection.in_turn:
            connection.in_turn = True
            self._in_turn.append(connection)
            if not self._taking:
                self._taking = True
                # Not at once: thousands of connections may have something to take in the same pass of the loop.
                self._loop.call_soon(self._slices.start, self._take_all(), self._all_taken)

    def _take_all(self) -> Work[None]:
        while self._in_turn:
            yield from self._in_turn.popleft().advance_work()
            yield None

    def _all_taken(self, _: None, error: BaseException | None) -> None:
        self._taking = False
        if error is not None:
            _LOG.error("a registry connection's frames could not be taken", exc_info=error)
        if self._in_turn:
            self._taking = True
            self._loop.call_soon(self._slices.start, self._take_all(), self._all_taken)

    def take(self, connection: TreeConnection, frame: bytes) -> None:
        """Take one frame. Raises FrameError when it makes no sense."""
        self._received += 1
        reader, size = jute.RequestReader(frame), len(frame)
        session = connection.session
        if session is None:
            self._hello(connection, reader)
            return
        session.touch(time.monotonic())
        xid, kind = reader.int32(), reader.int32()
        if kind == requests.PING:
            connection.send(jute.reply(_PING_XID, connection.last_zxid, 0))
        elif kind == requests.AUTH:
            self._authenticate(connection, session, reader, size)
        elif kind == requests.CLOSE_SESSION:
            self._close_session(connection, session, xid)
        elif self._identity is not None and not connection.authorized:
            self._refuse(connection, xid, store.NoAuth("this registry answers after digest authentication", "/"))
        else:
            self.submit(connection, Request(xid, _reading(kind, frame), size), begin=True)

    def submit(self, connection: TreeConnection, request: Request, *, begin: bool = False) -> None:
        """Have a request run by the registry."""
        if begin:
            connection.begin(request)
        session = connection.session
        assert session is not None
        asked = requests.Requester(self.registry, session.session_id, connection.tell)
        self.registry.submit_call(
            lambda: self._run(connection, request, asked),
            lambda ran, problem: self._answered(connection, request, ran, problem),
        )

    # In the writer thread ---------------------------------------------------------------------------------------------

    def _run(self, connection: TreeConnection, request: Request, asked: requests.Requester) -> _Ran | None:
        """Run a request, unless answers are in the way. May be called again, when the disk had no room."""
        made_before = request.answer_bytes
        if connection.postponing or connection.held_bytes > MAX_HELD_BYTES or not self.has_room_for_answers:
            connection.postponing = True
            return None
        registry = self.registry
        answer, failure = None, None
        try:
            if connection.dropped:
                raise store.ConnectionLoss("the connection was closed before its request ran")
            if asked.session_id not in registry.tree.sessions:
                raise store.SessionExpired(f"registry session {asked.session_id} has ended")
            self._check_watches(connection, asked.session_id)
            answer = request.run(asked)
        except (RegistryError, FrameError) as error:
            failure = _without_frames(error)
        request.answer_bytes = len(answer.body) if answer is not None else 0
        connection.made_bytes += request.answer_bytes - made_before
        self._outbox.count_made(request.answer_bytes - made_before)
        return _Ran(answer, failure, registry.last_zxid)

    def _check_watches(self, connection: TreeConnection, session_id: int) -> None:
        """Raise TooManyWatches if a session, or all together, have left more than are kept."""
        watches = self.registry.tree.watches
        of_session, of_all = watches.count(session_id), len(watches)
        for limit, count in ((self._session_watch_limit, of_session), (self._watch_limit, of_all)):
            if not limit.is_near(count):
                continue
            whose = f"session {session_id:#x} at {connection.peer}" if limit is self._session_watch_limit else "all"
            if count > limit.most:
                limit.refused(count, whose)
                raise TooManyWatches(f"registry session {session_id} has left too many watches")
            limit.note(count, whose)

    def _answered(
        self, connection: TreeConnection, request: Request, ran: _Ran | None, problem: BaseException | None
    ) -> None:
        if problem is not None:
            # What it gave has not happened.
            ran = None
        elif ran is None:
            self._outbox.put_postponed(connection, request)
            return
        if ran is not None and ran.answer is not None:
            connection.last_zxid = ran.zxid
            for event in ran.answer.events:
                connection.tell(event)
            self._outbox.put(connection, jute.reply(request.xid, ran.zxid, 0, ran.answer.body), request)
            return
        error = problem if ran is None else ran.error
        assert error is not None
        code = requests.error_code(error)
        if code == requests.SYSTEM_ERROR and not isinstance(error, RegistryError):
            _LOG.error("a registry request of %s failed", connection.peer, exc_info=error)
        self._outbox.put(
            connection, jute.reply(request.xid, connection.last_zxid if ran is None else ran.zxid, code), request
        )
        if isinstance(
            error, (FrameError, store.SessionExpired, store.ConnectionLoss, requests.UnknownRequest, TooManyWatches)
        ):
            self._outbox.put_end(connection)

    def put_event(self, connection: TreeConnection, event: WatchEvent) -> None:
        """Send an event to a connection. If that is too much, close it: its client reads the nodes again."""
        self._outbox.put_event(connection, event)

    # Sessions ---------------------------------------------------------------------------------------------------------

    def _say_older(self, seen_zxid: int) -> None:
        self._quiet.log(
            logging.WARNING,
            "older",
            "clients are not let in, because they have seen transaction %d, and this registry has come to %d only: it "
            "is an older copy, or their zookeeper.connect names the wrong one. Put the newest data back; if there is "
            "none, use kafkalite cluster recover-registry",
            seen_zxid, self.registry.last_zxid,
        )  # fmt: skip

    def _hello(self, connection: TreeConnection, reader: jute.RequestReader) -> None:
        """Answer a ConnectRequest: a new session, an old one, or none any more."""
        reader.int32()
        seen_zxid, wanted_ms, session_id = reader.int64(), reader.int32(), reader.int64()
        password = reader.buffer() or b""
        # Clients before 3.4 do not send it, and do not expect it back.
        knows_read_only = reader.remaining > 0
        if seen_zxid > self.registry.last_zxid:
            connection.close(f"it has seen zxid {seen_zxid:#x}, later than ours: it comes from another registry")
            self._say_older(seen_zxid)
        elif session_id:
            session = self._sessions.find(session_id, password)
            if session is not None:
                session.timeout_ms = negotiated_ms(wanted_ms)
                if session.connection is not None:
                    session.connection.close("its session came back on another connection")
                    # It may have ended with that connection.
                    session = self._sessions.find(session_id, password)
            self._welcome(connection, session, knows_read_only)
        elif len(self._sessions) >= MAX_SESSIONS:
            self._session_limit.refused(len(self._sessions))
            connection.close(f"there are {MAX_SESSIONS} sessions already")
        else:
            self._session_limit.note(len(self._sessions))
            connection.opening = True
            opened: Future[int] = Future()
            kept = KeptSession(new_password(), negotiated_ms(wanted_ms))
            opened.add_done_callback(
                lambda done: store.call_in_loop(self._loop, self._opened, connection, kept, knows_read_only, done)
            )
            self.registry.submit(lambda: self._open_session(connection, kept), opened)

    def _open_session(self, connection: TreeConnection, kept: KeptSession) -> int:
        """Open a session, in the writer thread, unless its client has given up: no client will ever use it, and a
        slow disk would have the more to do, the more clients give up."""
        if connection.closed:
            raise store.ConnectionLoss("the connection was closed before its session was opened")
        return self.registry.open_session(set(self._of_all), kept)

    def _opened(self, connection: TreeConnection, kept: KeptSession, knows_read_only: bool, done: Future[int]) -> None:
        connection.opening = False
        if done.exception() is not None:
            connection.close(f"no session could be opened for it: {done.exception()}")
            return
        session = self._sessions.add(done.result(), kept.timeout_ms, kept.password, time.monotonic())
        if not connection.closed:
            self._welcome(connection, session, knows_read_only)
            self.advance_soon(connection)

    def _welcome(self, connection: TreeConnection, session: ServedSession | None, knows_read_only: bool) -> None:
        timeout_ms, session_id, password = 0, 0, bytes(_PASSWORD_BYTES)
        if session is not None:
            session.touch(time.monotonic())
            session.connection, connection.session = connection, session
            timeout_ms, session_id, password = session.timeout_ms, session.session_id, session.password
        hello = jute.write_int(0) + jute.write_int(timeout_ms) + jute.write_long(session_id)
        connection.send(framed(hello + jute.write_buffer(password) + b"\0" * knows_read_only))
        if session is None:
            connection.end()

    def _close_session(self, connection: TreeConnection, session: ServedSession, xid: int) -> None:
        self._sessions.remove(session.session_id)
        request = Request(xid, _raising(store.SessionExpired("")), 0)
        connection.begin(request)

        def ended(done: Future[None]) -> None:
            code = 0 if done.exception() is None else requests.SYSTEM_ERROR
            self._outbox.put(connection, jute.reply(xid, self.registry.last_zxid, code), request)
            self._outbox.put_end(connection)

        # Behind all that the session has asked for.
        self._end(session, ended)

    def _expire(self, session: ServedSession) -> None:
        # Loud only when somebody will miss it: a hostile peer can leave any number of sessions to expire.
        level = logging.INFO if self.registry.tree.sessions.get(session.session_id) else logging.DEBUG
        _LOG.log(level, "registry session %d has expired after %d ms", session.session_id, session.timeout_ms)
        self._sessions.remove(session.session_id)
        connection: TreeConnection | None = session.connection
        if connection is not None:
            connection.close("its session has expired")
        self._end(session, lambda _: None)

    def _end(self, session: ServedSession, then: Callable[[Future[None]], None]) -> None:
        """End a session in the registry; when that has no room for it, again later."""

        def ended(done: Future[None]) -> None:
            if isinstance(done.exception(), store.OutOfRoom):
                store.call_in_loop(self._loop, self._end_later, session)
            then(done)

        self.registry.expire(session.session_id).add_done_callback(ended)

    def _end_later(self, session: ServedSession) -> None:
        self._loop.call_later(_RETRY_EXPIRY_S, self._end, session, lambda _: None)

    # Single requests --------------------------------------------------------------------------------------------------

    def _authenticate(
        self, connection: TreeConnection, session: ServedSession, reader: jute.RequestReader, size: int
    ) -> None:
        reader.int32()
        scheme, credential = reader.optional_string(), reader.buffer() or b""
        try:
            text = credential.decode()
        except UnicodeDecodeError:
            text = ""
        identity = digest_identity(text) if scheme == "digest" and text.partition(":")[1] else None
        if identity is not None and self._identity is not None:
            connection.authorized = hmac.compare_digest(identity[1].encode(), self._identity[1].encode())
            if connection.authorized:
                session.trust(time.monotonic())
        if identity is None or (self._identity is not None and not connection.authorized):
            self.log_closed(connection, f"authentication by {scheme} failed")
            connection.send(jute.reply(_AUTH_XID, connection.last_zxid, _AUTH_FAILED))
            connection.end()
            return
        proved = {identity, *(self._of_brokers if connection.authorized else ())}

        def run(asked: requests.Requester) -> requests.Answer:
            asked.registry.tree.identities.setdefault(session.session_id, set()).update(proved)
            return requests.Answer(b"")

        self.submit(connection, Request(_AUTH_XID, run, size), begin=True)

    def _refuse(self, connection: TreeConnection, xid: int, error: RegistryError) -> None:
        connection.send(jute.reply(xid, connection.last_zxid, requests.error_code(error)))

    def four_letters(self, connection: TreeConnection, word: bytes) -> bool:
        """Answer a four-letter word; return whether it was one."""
        answer = four_letter_words.answer_to(
            word, self.registry, self._connections, self._received, self._outbox.sent_frames
        )
        if answer is None:
            return False
        connection.send(answer.encode())
        connection.end()
        return True


def _reading(kind: int, frame: bytes) -> requests.Run:
    """Read a request's body when it is run: that may take as long as running it."""

    def run(asked: requests.Requester) -> requests.Answer:
        reader = jute.RequestReader(frame)
        reader.int64()
        return requests.parse(kind, reader)(asked)

    return run


def _without_frames(error: RegistryError | FrameError) -> RegistryError | FrameError:
    """Take from an error the calls that raised it: they hold the error itself and the request, until the garbage
    collector comes, and no bound counts these bytes."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _raising(error: Exception) -> requests.Run:
    def run(_: requests.Requester) -> requests.Answer:
        raise error

    return run
