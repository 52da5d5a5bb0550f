from .comparison import Comparison as Comparison
from .function import compare as compare

__all__ = ["Comparison", "compare"]
