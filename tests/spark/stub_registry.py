"""A schema registry of the calls that the program uses, over HTTP on loopback: no registry is to be had from PyPI.

It answers as Confluent's does: a schema by its id, a subject's newest and numbered versions, and registering one, where
the same text has the same id. It does not check that versions are compatible.
"""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote


class StubRegistry:
    """The registry; to be used in a ``with`` statement.

    ``requests`` are the method and path of all that came. ``fails_with`` is a status that is given instead of answers.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.authorizations: list[str | None] = []
        self.fails_with: int | None = None
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(self, subject: str, schema: Any, *references: tuple[str, str, int], schema_type: str = "AVRO") -> int:
        """Return the id of a schema. References are name, subject and version."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        document: dict[str, Any] = {"schema": text}
        if references:
            document["references"] = [{"name": n, "subject": s, "version": v} for n, s, v in references]
        if schema_type != "AVRO":
            document["schemaType"] = schema_type
        return self._register(subject, document)

    def _register(self, subject: str, document: dict[str, Any]) -> int:
        if document not in self._schemas:
            self._schemas.append(document)
        number = self._schemas.index(document)
        versions = self._subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number + 1

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and document."""
        self.requests.append(f"{method} {path}")
        if self.fails_with is not None:
            return self.fails_with, {"error_code": self.fails_with, "message": "as the test says"}
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(found[1]) - 1
            if not 0 <= number < len(self._schemas):
                return 404, {"error_code": 40403, "message": f"Schema {number + 1} not found"}
            return 200, self._schemas[number]
        if found := re.fullmatch(r"/subjects/([^/]+)/versions(?:/(latest|\d+))?", path):
            subject = unquote(found[1])
            if method == "POST":
                kept = {name: body[name] for name in ("schema", "references") if body.get(name)}
                return 200, {"id": self._register(subject, kept)}
            if subject not in self._subjects:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            versions = self._subjects[subject]
            version = len(versions) if found[2] == "latest" else int(found[2])
            number = versions[version - 1]
            return 200, {"subject": subject, "version": version, "id": number + 1, **self._schemas[number]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.authorizations.append(self.headers.get("Authorization"))
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
                status, document = registry.answer(self.command, self.path.partition("?")[0], body)
                content = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET  # noqa: N815

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        return Handler
