# Read by the other scripts: what Flower needs to work without the internet.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 RAY_USAGE_STATS_ENABLED=0
here="$(cd "$(dirname "$0")" && pwd)"
export FLWR_HOME="${FLWR_HOME:-$here/.flwr}"
