#!/bin/sh
# Installs the Debian packages that the tests marked `debian` and `root` use. Needs root; does nothing where all are there.
#   kcat      an older librdkafka: a client that still asks for Produce 0-2
#   iproute2  network namespaces: broker, client and Spark driver as if on different hosts
#   strace    counting and failing system calls
#   openssl   a TLS server that changes its keys
#   buildah, debootstrap   images of conf/, in the soak (installed by hand: apt-get install buildah debootstrap crun)
#   krb5-kdc, krb5-admin-server, krb5-user   a KDC; libkrb5-dev   what python-gssapi is built with (make setup-kerberos)
#   prometheus  Prometheus and promtool, which evaluate conf/alerts.yml; its service may be disabled afterwards
#   faketime  hosts whose clocks are wrong
#   e2fsprogs, mount   disks of the tests' own that are filled or lose their power

set -eu

wanted=""
command -v kcat >/dev/null 2>&1 || wanted="$wanted kcat"
command -v ip >/dev/null 2>&1 || wanted="$wanted iproute2"
command -v strace >/dev/null 2>&1 || wanted="$wanted strace"
command -v openssl >/dev/null 2>&1 || wanted="$wanted openssl"
command -v mkfs.ext4 >/dev/null 2>&1 || wanted="$wanted e2fsprogs"
command -v krb5kdc >/dev/null 2>&1 || [ -x /usr/sbin/krb5kdc ] || wanted="$wanted krb5-kdc"
command -v kadmin.local >/dev/null 2>&1 || [ -x /usr/sbin/kadmin.local ] || wanted="$wanted krb5-admin-server"
command -v kinit >/dev/null 2>&1 || wanted="$wanted krb5-user"
command -v krb5-config >/dev/null 2>&1 || wanted="$wanted libkrb5-dev"
command -v faketime >/dev/null 2>&1 || wanted="$wanted faketime"
command -v prometheus >/dev/null 2>&1 || wanted="$wanted prometheus"
command -v losetup >/dev/null 2>&1 || wanted="$wanted mount"

[ -n "$wanted" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "The tests marked debian and root need:$wanted (install them as root: apt-get install$wanted)" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086  # a list of package names
apt-get install -y -qq --no-install-recommends $wanted
