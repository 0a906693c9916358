"""Tokens of clients: where they come from."""

from __future__ import annotations

from pathlib import Path

from spark_kafkalite.errors import SaslAuthenticationFailed


def read_token_file(path: str, longest: int) -> str:
    """Return the text of ``sasl.token.file``, at most ``longest`` bytes, without blanks around it.

    Raises SaslAuthenticationFailed when it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(longest + 1)
    except OSError as error:
        raise SaslAuthenticationFailed(f"sasl.token.file={path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise SaslAuthenticationFailed("sasl.token.file: a path cannot hold a NUL character") from None
    if len(content) > longest:
        raise SaslAuthenticationFailed(f"sasl.token.file={path}: holds more than {longest} bytes, which no token does")
    try:
        return content.decode().strip()
    except UnicodeDecodeError:
        raise SaslAuthenticationFailed(f"sasl.token.file={path}: is not UTF-8 text") from None
