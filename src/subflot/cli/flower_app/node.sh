#!/bin/sh
# Start a SuperNode on a device. NAME is the device's own; its key is made the first time.
#     ./node.sh NAME SERVER:PORT OWN_PORT 'data="/data/examples.npz" budget=200000 quantity="parameters"'
set -eu
[ $# -eq 4 ] || { sed -n '2,3s/^# *//p' "$0" >&2; exit 2; }
. "$(dirname "$0")/environment.sh"
mkdir -p "$here/keys"
if [ ! -f "$here/keys/$1" ]; then
    ssh-keygen -q -t ecdsa -b 384 -N '' -f "$here/keys/$1"
    echo "new key: register it beside the SuperLink, then start again:" >&2
    echo "    ./flwr.sh supernode register keys/$1.pub devices --name $1" >&2
    exit 1
fi
exec flower-supernode --root-certificates "$here/certificates/ca.crt" --superlink "$2" --port "$3" \
    --auth-supernode-private-key "$here/keys/$1" --node-config "$4"
