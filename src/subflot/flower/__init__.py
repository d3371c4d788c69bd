"""The same methods on Flower: an adapter between its messages and the steps of a method."""

import os
from importlib.util import find_spec

from subflot.errors import SubflotError

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""What Flower and Ray need to be told to work without the internet."""

if find_spec("flwr") is None:
    raise SubflotError("Flower is not installed", hint="pip install 'subflot[flower]'")
for _name, _value in OFFLINE.items():  # Before Flower is imported, which reads them then.
    os.environ.setdefault(_name, _value)
