// Asks cuDNN's stand-in about recurrent layers, and prints: the bytes that are kept and needed in four layers of 320
// of 500 steps of 50 sequences, as an LSTM, a GRU and in inference; whether the parameters of a bidirectional LSTM
// lie side by side in the order of their numbers within each half, none twice, and all in the space.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

static int (*cudnnCreateRNNDescriptor)(void **);
static int (*cudnnCreateRNNDataDescriptor)(void **);
static int (*cudnnCreateTensorDescriptor)(void **);
static int (*cudnnSetRNNDescriptor_v8)(void *, int, int, int, int, int, int, int, int, int32_t, int32_t, int32_t, int32_t, void *, uint32_t);
static int (*cudnnSetRNNDataDescriptor)(void *, int, int, int, int, int, const int *, void *);
static int (*cudnnGetRNNWeightSpaceSize)(void *, void *, size_t *);
static int (*cudnnGetRNNTempSpaceSizes)(void *, void *, int, void *, size_t *, size_t *);
static int (*cudnnGetRNNWeightParams)(void *, void *, int32_t, size_t, const void *, int32_t, void *, void **, void *, void **);
static int (*cudnnGetTensorNdDescriptor)(void *, int, int *, int *, int *, int *);

#define LOAD(name) *(void **)&name = dlsym(lib, #name)

static char space[1 << 20], taken[1 << 20];

int main(void) {
  void *lib = dlopen("libcudnn.so.9", RTLD_NOW);
  LOAD(cudnnCreateRNNDescriptor);
  LOAD(cudnnCreateRNNDataDescriptor);
  LOAD(cudnnCreateTensorDescriptor);
  LOAD(cudnnSetRNNDescriptor_v8);
  LOAD(cudnnSetRNNDataDescriptor);
  LOAD(cudnnGetRNNWeightSpaceSize);
  LOAD(cudnnGetRNNTempSpaceSizes);
  LOAD(cudnnGetRNNWeightParams);
  LOAD(cudnnGetTensorNdDescriptor);
  void *rnn, *data, *m, *b;
  size_t work, kept, n, none;
  cudnnCreateRNNDescriptor(&rnn), cudnnCreateRNNDataDescriptor(&data), cudnnCreateTensorDescriptor(&m), cudnnCreateTensorDescriptor(&b);
  cudnnSetRNNDataDescriptor(data, 0, 0, 500, 50, 123, 0, 0);
  for (int mode = 2; mode <= 3; mode++) {
    cudnnSetRNNDescriptor_v8(rnn, 0, mode, 2, 0, 0, 0, 0, 0, 123, 320, 320, 4, 0, 0);
    cudnnGetRNNTempSpaceSizes(0, rnn, 1, data, &work, &kept);
    cudnnGetRNNTempSpaceSizes(0, rnn, 0, data, &work, &none);
    printf("%zu %zu %zu\n", kept, work, none);
  }

  cudnnSetRNNDescriptor_v8(rnn, 0, 2, 2, 1, 0, 2, 0, 0, 12, 16, 8, 2, 0, 0); // half, with a projection
  cudnnGetRNNWeightSpaceSize(0, rnn, &n);
  size_t sum = 0, twice = 0, apart = 0;
  for (int layer = 0; layer < 4; layer++)
    for (int bias = 0; bias < 2; bias++) {
      char *end = 0;
      for (int i = 0; i < 9; i++) {
        void *at = 0;
        int type, count, sizes[3], strides[3];
        if (bias && i == 8) continue;
        cudnnGetRNNWeightParams(0, rnn, layer, n, space, i, bias ? 0 : m, bias ? 0 : &at, bias ? b : 0, bias ? &at : 0);
        cudnnGetTensorNdDescriptor(bias ? b : m, 3, &type, &count, sizes, strides);
        size_t bytes = 2 * (size_t)sizes[0] * sizes[1] * sizes[2];
        if (end && i != 4 && (char *)at != end) apart++;
        end = (char *)at + bytes, sum += bytes;
        for (char *p = at; p < end; p++) twice += taken[p - space]++;
      }
    }
  for (size_t i = 0; i < n; i++) apart += !taken[i];
  printf("%zu %d %zu %zu\n", n, sum == n, twice, apart);
  return 0;
}
