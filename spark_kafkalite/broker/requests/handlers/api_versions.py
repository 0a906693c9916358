"""ApiVersions (key 18), versions 0 to 4: what this broker serves.

The answer is built from the dispatch table, so that nothing is advertised that has no handler.

v0-2  plain
v3    flexible, with the client's name and version, which are checked and, cut to 64 characters, kept in its session
v4    allows a feature's minimum version to be 0; the same bytes as v3 while there are no features

A version above 4 is answered in version 0 with UNSUPPORTED_VERSION and the one entry with the versions of this API that
the client may use (KIP-511); dispatch passes no message then.
"""

from __future__ import annotations

import re

from spark_kafkalite.broker.context import BrokerContext
from spark_kafkalite.broker.requests.dispatch import SERVED_APIS, handles
from spark_kafkalite.broker.requests.exchange import Exchange
from spark_kafkalite.errors import InvalidRequest, UnsupportedVersion
from spark_kafkalite.wire.api_keys import ApiKey
from spark_kafkalite.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

# Source: KIP-511.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
# Of a name and of a version that are kept for as long as the connection lasts.
_MOST_CHARS = 64


@handles(ApiKey.API_VERSIONS, 0, 4)
def handle(context: BrokerContext, exchange: Exchange, message: ApiVersionsRequest | None) -> ApiVersionsResponse:
    """List the served APIs."""
    if message is None:
        own = SERVED_APIS[exchange.api_key]
        entry = ApiVersion(api_key=own.key, min_version=own.advertised_from, max_version=own.max_version)
        return ApiVersionsResponse(error_code=UnsupportedVersion.code, api_keys=[entry])
    if exchange.api_version >= 3:
        name, version = message.client_software_name, message.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=InvalidRequest.code)
        session = exchange.session
        session.client_software_name, session.client_software_version = name[:_MOST_CHARS], version[:_MOST_CHARS]
    exchange.session.versions_answered()
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.advertised_from, max_version=api.max_version)
            for api in sorted(SERVED_APIS.values(), key=lambda api: api.key)
            if not api.brokers_only
        ]
    )
