"""Keys agree with those of flax only with its separator fix on, which it reads when it is imported."""

from __future__ import annotations

import os

os.environ["FLAX_FIX_RNG_SEPARATOR"] = "1"
