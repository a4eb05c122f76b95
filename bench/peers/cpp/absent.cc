// Functions of the CUDA runtime that libraries refer to and no peer calls. Each ends the
// process with its name, so that nothing is stubbed in silence. No header of CUDA is
// included here, since these have no parameters.
#include <stdio.h>
#include <stdlib.h>

#define ABSENT(name)                                          \
  extern "C" void name() {                                    \
    fputs("the peer called " #name ", which is absent\n", stderr); \
    abort();                                                  \
  }

ABSENT(cudaDeviceEnablePeerAccess)
ABSENT(cudaDriverGetVersion)
ABSENT(cudaEventElapsedTime)
ABSENT(cudaIpcCloseMemHandle)
ABSENT(cudaIpcGetMemHandle)
ABSENT(cudaIpcOpenMemHandle)
ABSENT(cudaMemcpy)
ABSENT(cudaMemcpyAsync)
ABSENT(cudaMemcpyPeerAsync)
ABSENT(cudaStreamCreateWithPriority)
ABSENT(cudaStreamQuery)
