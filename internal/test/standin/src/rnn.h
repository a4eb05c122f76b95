// Recurrent layers of cuDNN's stand-in, by the interface of cudnn_adv.h from version 8 on. Where the parameters lie is
// cuDNN's business: here all matrices come first, then all biases, without gaps.
//
// How much a layer keeps for the way back, and needs meanwhile, is not documented. The estimate is made from the
// figures that cuDNN 7 gave on a P100 (github.com/pytorch/pytorch/issues/2895) for four layers of 320, whose parameters
// say that the input has 123, and the figures that there are 25,000 steps of sequences, as of 50 with 500:
//
//	     kept         meanwhile
//	LSTM 736,000,000  17,730,560
//	GRU  864,000,000  13,169,920
//
// Kept is each step's output between layers, and in each layer 5 numbers for each output of an LSTM and 6 of a GRU.
// Meanwhile all matrices are needed once more, and in each layer 22 and 16 numbers for each output of one step.

#include "note.h"
#include <stdint.h>
#include <string.h>

enum { RNN_LSTM = 2, RNN_GRU = 3, DOUBLE_BIAS = 2, NO_BIAS = 0, TRAINING = 1, MOST_DIMENSIONS = 8 };
enum { DATA_DOUBLE = 1, DATA_HALF = 2, DATA_BFLOAT16 = 9 };

struct tensor {
  int type, count, sizes[MOST_DIMENSIONS];
};

struct rnn {
  int mode, bias, directions, type;
  int64_t input, hidden, projected, layers;
};

struct rnnData {
  int64_t steps, batch;
};

static int64_t bytes_of(int type) { return type == DATA_DOUBLE ? 8 : type == DATA_HALF || type == DATA_BFLOAT16 ? 2 : 4; }

static int64_t gates(const struct rnn *r) { return r->mode == RNN_LSTM ? 4 : r->mode == RNN_GRU ? 3 : 1; }

static int64_t output(const struct rnn *r) { return r->projected ? r->projected : r->hidden; }

// Matrices of a layer in one direction: those of the input, those of the state, and the projection.
static int64_t matrix(const struct rnn *r, int64_t layer, int64_t n) {
  int64_t in = layer < r->directions ? r->input : output(r) * r->directions;
  return n < gates(r) ? r->hidden * in : r->hidden * output(r); // the projection is as large as one of the state
}

static int64_t matrices(const struct rnn *r) { return 2 * gates(r) + (r->projected != 0); }

static int64_t biases(const struct rnn *r) { return r->bias == NO_BIAS ? 0 : r->bias == DOUBLE_BIAS ? 2 * gates(r) : gates(r); }

// Numbers in all matrices before the n-th one of a layer.
static int64_t before(const struct rnn *r, int64_t layer, int64_t n) {
  int64_t sum = 0;
  for (int64_t l = 0; l <= layer; l++)
    for (int64_t i = 0; i < (l < layer ? matrices(r) : n); i++) sum += matrix(r, l, i);
  return sum;
}

static int64_t all_layers(const struct rnn *r) { return r->layers * r->directions; }

static int64_t parameters(const struct rnn *r) {
  return before(r, all_layers(r), 0) + all_layers(r) * biases(r) * r->hidden;
}

static int describe(struct tensor *t, int type, int64_t rows, int64_t columns) {
  *t = (struct tensor){type, 3, {1, (int)rows, (int)columns}};
  return 0;
}

static int made(void **d, size_t n) { return (*d = calloc(1, n)) ? 0 : 2; } // CUDNN_STATUS_ALLOC_FAILED

FN cudnnCreateTensorDescriptor(void **d) { return made(d, sizeof(struct tensor)); }
FN cudnnDestroyTensorDescriptor(void *d) { free(d); return 0; }
FN cudnnCreateRNNDescriptor(void **d) { return made(d, sizeof(struct rnn)); }
FN cudnnDestroyRNNDescriptor(void *d) { free(d); return 0; }
FN cudnnCreateRNNDataDescriptor(void **d) { return made(d, sizeof(struct rnnData)); }
FN cudnnDestroyRNNDataDescriptor(void *d) { free(d); return 0; }

FN cudnnSetTensorNdDescriptor(struct tensor *t, int type, int n, const int *sizes, const int *strides) {
  if (!t || n < 0 || n > MOST_DIMENSIONS) return BAD_PARAMETER;
  t->type = type, t->count = n;
  memcpy(t->sizes, sizes, (size_t)n * sizeof *sizes);
  return 0;
}

FN cudnnGetTensorNdDescriptor(const struct tensor *t, int room, int *type, int *n, int *sizes, int *strides) {
  if (!t) return BAD_PARAMETER;
  if (type) *type = t->type;
  if (n) *n = t->count;
  for (int i = (room < t->count ? room : t->count) - 1, step = 1; i >= 0; i--) {
    if (sizes) sizes[i] = t->sizes[i];
    if (strides) strides[i] = step;
    step *= t->sizes[i];
  }
  return 0;
}

FN cudnnSetRNNDescriptor_v8(struct rnn *r, int algorithm, int mode, int bias, int bidirectional, int inputMode, int type, int precision, int math,
                            int32_t input, int32_t hidden, int32_t projected, int32_t layers, void *dropout, uint32_t flags) {
  if (!r) return BAD_PARAMETER;
  *r = (struct rnn){mode, bias, bidirectional ? 2 : 1, type, input, hidden, projected == hidden ? 0 : projected, layers};
  return 0;
}

FN cudnnSetRNNDataDescriptor(struct rnnData *d, int type, int layout, int steps, int batch, int size, const int *lengths, void *fill) {
  if (!d) return BAD_PARAMETER;
  *d = (struct rnnData){steps, batch};
  return 0;
}

FN cudnnGetRNNWeightSpaceSize(void *h, const struct rnn *r, size_t *n) {
  *n = (size_t)(parameters(r) * bytes_of(r->type));
  return 0;
}

FN cudnnGetRNNWeightParams(void *h, const struct rnn *r, int32_t layer, size_t room, const char *space, int32_t n,
                           struct tensor *m, const char **at, struct tensor *b, const char **biasAt) {
  if (layer >= all_layers(r) || n >= matrices(r)) return BAD_PARAMETER;
  if (m && at) {
    int64_t rows = n < 2 * gates(r) ? r->hidden : output(r);
    describe(m, r->type, rows, matrix(r, layer, n) / rows);
    *at = space + before(r, layer, n) * bytes_of(r->type);
  }
  if (b && biasAt) {
    int64_t mine = biases(r);
    describe(b, r->type, n < mine ? r->hidden : 0, 1);
    *biasAt = n < mine ? space + (before(r, all_layers(r), 0) + (layer * mine + n) * r->hidden) * bytes_of(r->type) : 0;
  }
  return 0;
}

FN cudnnGetRNNTempSpaceSizes(void *h, const struct rnn *r, int mode, const struct rnnData *x, size_t *work, size_t *reserve) {
  static _Atomic int said;
  note(&said, "Workspaces of cuDNN's recurrent layers are estimated, from two that were published; torch.backends.cudnn.enabled = False is the way without them.");
  int64_t width = x->batch * r->hidden * r->directions * bytes_of(r->type);
  int64_t kept = r->mode == RNN_GRU ? 6 : gates(r) + 1;
  if (work) *work = (size_t)(before(r, all_layers(r), 0) * bytes_of(r->type) + width * r->layers * (6 * gates(r) - 2));
  if (reserve) *reserve = mode == TRAINING ? (size_t)(width * x->steps * (kept * r->layers + r->layers - 1)) : 0;
  return 0;
}
