# What tensorflow.py uses of TensorFlow.
__version__ = "2.21.0"
