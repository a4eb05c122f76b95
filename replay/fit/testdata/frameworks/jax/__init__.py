# What start.py uses of JAX.
from types import SimpleNamespace as _N

__version__ = "0.12.0"
_src = _N(xla_bridge=_N(_backends={}))
monitoring = _N(register_event_duration_secs_listener=lambda f: None)
