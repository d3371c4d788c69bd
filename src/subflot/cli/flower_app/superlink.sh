#!/bin/sh
# Start the SuperLink, which devices and `flwr` talk to. It runs until Ctrl-C.
#     ./superlink.sh [HOST] [PORT]
set -eu
. "$(dirname "$0")/environment.sh"
exec flower-superlink --host "${1:-127.0.0.1}" --port "${2:-9500}" --enable-supernode-auth \
    --ssl-ca-certfile "$here/certificates/ca.crt" --ssl-certfile "$here/certificates/server.crt" \
    --ssl-keyfile "$here/certificates/server.key" --database "$here/.flwr/superlink.db"
