#!/bin/sh
# Make a certificate for the server, valid for the names and addresses given.
#     ./certificates.sh 127.0.0.1 server.local 192.168.1.10
set -eu
[ $# -gt 0 ] || { echo "error: name the server, as devices reach it: ./certificates.sh 127.0.0.1" >&2; exit 2; }
cd "$(dirname "$0")"
mkdir -p certificates
cd certificates
umask 077
names=",IP:127.0.0.1"  # Where this machine itself reaches it.
for name in "$@"; do
    case "$name" in
        127.0.0.1) ;;
        *[!0-9.]*) names="$names,DNS:$name" ;;
        *) names="$names,IP:$name" ;;
    esac
done
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -subj "/CN=@NAME@ authority" \
    -keyout ca.key -out ca.crt 2>/dev/null
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" -keyout server.key -out server.csr 2>/dev/null
printf 'subjectAltName=%s\n' "${names#,}" > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
    -extfile server.ext -out server.crt 2>/dev/null
rm server.csr server.ext
chmod 644 ca.crt server.crt
echo "certificates/: ca.crt goes to every device; ca.key and server.key stay here"
