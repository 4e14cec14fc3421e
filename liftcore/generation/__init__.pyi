from .caches import rewind
from .generating import generate
from .loop import Generated
from .sampling import filter_logits, sample_tokens

__all__ = ["Generated", "filter_logits", "generate", "rewind", "sample_tokens"]
