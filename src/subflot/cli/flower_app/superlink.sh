#!/bin/sh
# Start the SuperLink. Devices join on HOST:PORT; `flwr` commands it on 127.0.0.1:CONTROL_PORT,
# which nobody reaches from outside. It runs until Ctrl-C.
#     ./superlink.sh [HOST] [PORT] [CONTROL_PORT]
set -eu
. "$(dirname "$0")/environment.sh"
exec subflot flower superlink "${1:-127.0.0.1}" "${2:-9500}" --control-port "${3:-9501}" --home "$here"
