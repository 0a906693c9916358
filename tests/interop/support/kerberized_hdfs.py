"""HDFS that takes clients by Kerberos alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.interop.support.kerberos_realm import KerberosRealm
from tests.lab.hdfs import MiniHdfs

_HDFS: Final = "hdfs/127.0.0.1"
_HTTP: Final = "HTTP/127.0.0.1"


def kerberized_hdfs(directory: Path, realm: KerberosRealm) -> MiniHdfs:
    """Return a cluster to be started, whose servers are principals of the realm.

    The data node takes any port, which it does under this name of a test alone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    realm.add(_HDFS, _HTTP)
    keytab = str(realm.keytab(directory / "hdfs.keytab", _HDFS, _HTTP))
    server, web = f"{_HDFS}@{realm.realm}", f"{_HTTP}@{realm.realm}"
    settings = {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "dfs.block.access.token.enable": "true",
        "dfs.data.transfer.protection": "authentication",
        "ignore.secure.ports.for.testing": "true",
        "dfs.namenode.kerberos.principal": server,
        "dfs.namenode.keytab.file": keytab,
        "dfs.datanode.kerberos.principal": server,
        "dfs.datanode.keytab.file": keytab,
        "dfs.web.authentication.kerberos.principal": web,
        "dfs.web.authentication.kerberos.keytab": keytab,
    }
    return MiniHdfs(directory, settings=settings, jvm_options=(f"-Djava.security.krb5.conf={realm.krb5_conf}",))
