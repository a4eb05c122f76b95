// libcudart.so.13, which PyTorch's wheels have since CUDA 13.

#define CUDART 13
#include "cudart.c"
