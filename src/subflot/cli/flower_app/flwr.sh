#!/bin/sh
# Call `flwr` with this folder's settings.
#     ./flwr.sh run . devices --stream --run-config 'devices=true'
set -eu
. "$(dirname "$0")/environment.sh"
cd "$here"
exec flwr "$@"
