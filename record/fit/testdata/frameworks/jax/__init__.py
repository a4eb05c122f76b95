# What start.py uses of JAX.
from types import SimpleNamespace as _N

__version__ = "0.12.0"
_options = {}
_src = _N(xla_bridge=_N(_backends={"cuda": _N(live_executables=lambda: [])}, _options_from_jax_configs=lambda plugin: dict(_options)))
monitoring = _N(register_event_duration_secs_listener=lambda f: None)
