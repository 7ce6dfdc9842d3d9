"""More than one server: a primary with a replica and sentinels, a cluster, a server behind TLS.

Everything here is made of `holdfast.server.Server`, and so dies with the test run.
"""

from tests.support.cluster import ClusterNodes, start_cluster
from tests.support.group import info, wait_until
from tests.support.sentinel import SentinelPair, start_sentinel_pair
from tests.support.tls import Certificates, TlsServer, make_certificates, tls_binary, tls_server

__all__ = [
    "Certificates",
    "ClusterNodes",
    "SentinelPair",
    "TlsServer",
    "info",
    "make_certificates",
    "start_cluster",
    "start_sentinel_pair",
    "tls_binary",
    "tls_server",
    "wait_until",
]
