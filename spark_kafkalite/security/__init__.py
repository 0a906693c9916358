"""TLS and SASL: settings, keys and certificates, and the exchanges of bytes; nothing here opens a connection."""
