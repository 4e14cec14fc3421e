"""The peers, where they are there: `LIFTCORE_REQUIRE_PEERS=1` makes it an error that they are not.

Keys agree with those of flax only with its separator fix on, which it reads when it is imported.
"""

from __future__ import annotations

import importlib
import os

os.environ["FLAX_FIX_RNG_SEPARATOR"] = "1"

if os.environ.get("LIFTCORE_REQUIRE_PEERS") == "1":
    importlib.import_module("flax")  # elsewhere each module skips itself
