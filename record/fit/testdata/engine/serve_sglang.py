import sys
import sglang

sglang.Engine(**{name: float(value) for name, value in (word.split("=") for word in sys.argv[1:])})
print("served")
