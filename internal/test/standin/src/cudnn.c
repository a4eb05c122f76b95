// A stand-in for libcudnn.so.9: it says that it is newer than what programs want, and offers one engine for each
// graph, which needs no workspace and does nothing.

#include <stdint.h>
#include <string.h>

#define FN __attribute__((visibility("default"))) int

FN cudnnCreate(void **h) { *h = (void *)0x50; return 0; }
FN cudnnGetProperty(int t, int *v) { *v = t == 0 ? 9 : t == 1 ? 99 : 0; return 0; }
__attribute__((visibility("default"))) uint64_t cudnnGetVersion(void) { return 99900; }
__attribute__((visibility("default"))) uint64_t cudnnGetCudartVersion(void) { return 12090; }
__attribute__((visibility("default"))) const char *cudnnGetErrorString(int s) { return s ? "not supported on the simulated GPU" : "ok"; }


// The interface before graphs: no workspace, nothing kept for the way back.
enum { BAD_PARAMETER = 2000, NOT_SUPPORTED = 3000 };
#include "rnn.h"
#define P void *
FN cudnnGetConvolutionForwardWorkspaceSize(P h, P x, P w, P c, P y, int algo, size_t *n) { *n = 0; return 0; }
FN cudnnGetConvolutionBackwardDataWorkspaceSize(P h, P w, P y, P c, P x, int algo, size_t *n) { *n = 0; return 0; }
FN cudnnGetConvolutionBackwardFilterWorkspaceSize(P h, P x, P y, P c, P w, int algo, size_t *n) { *n = 0; return 0; }
FN cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(P h, int mode, int ops, P x, P z, P y, P p, P a, size_t *n) { *n = 0; return 0; }
FN cudnnGetBatchNormalizationBackwardExWorkspaceSize(P h, int mode, int ops, P x, P y, P dy, P dz, P dx, P p, P a, size_t *n) { *n = 0; return 0; }
FN cudnnGetBatchNormalizationTrainingExReserveSpaceSize(P h, int mode, int ops, P a, P x, size_t *n) { *n = 0; return 0; }
enum { PERFORMANCE = 48 }; // bytes of cudnnConvolutionFwdAlgoPerf_t and its like
static int algorithm(int *got, void *performance) { memset(performance, 0, PERFORMANCE); *got = 1; return 0; }
FN cudnnGetConvolutionForwardAlgorithm_v7(P h, P x, P w, P c, P y, int n, int *got, P r) { return algorithm(got, r); }
FN cudnnGetConvolutionBackwardDataAlgorithm_v7(P h, P w, P y, P c, P x, int n, int *got, P r) { return algorithm(got, r); }
FN cudnnGetConvolutionBackwardFilterAlgorithm_v7(P h, P x, P y, P c, P w, int n, int *got, P r) { return algorithm(got, r); }
FN cudnnFindConvolutionForwardAlgorithmEx(P h, P a, P b, P d, P e, P c, P f, P g, int n, int *got, P r) { return algorithm(got, r); }
FN cudnnFindConvolutionBackwardDataAlgorithmEx(P h, P a, P b, P d, P e, P c, P f, P g, int n, int *got, P r) { return algorithm(got, r); }
FN cudnnFindConvolutionBackwardFilterAlgorithmEx(P h, P a, P b, P d, P e, P c, P f, P g, int n, int *got, P r) { return algorithm(got, r); }
FN cudnnGetCTCLossWorkspaceSize(void) { return NOT_SUPPORTED; }
FN cudnnGetCTCLossWorkspaceSize_v8(void) { return NOT_SUPPORTED; }

FN cudnnBackendCreateDescriptor(int type, void **descriptor) { *descriptor = (void *)(uintptr_t)(0x100 + type); return 0; }

// Attributes of cudnn_graph.h, and the types of their values.
enum { HEURISTIC_RESULTS = 202, CONFIG_ENGINE = 300, CONFIG_WORKSPACE = 303, PLAN_CONFIG = 401, PLAN_WORKSPACE = 402, PLAN_JSON = 405, GRAPH_ENGINES = 802, ENGINE_INDEX = 1301 };

FN cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted, int64_t *count, void *values) {
  static const char json[] = "{}";
  int64_t n = 0;
  (void)descriptor, (void)type;
  switch (name) {
  case HEURISTIC_RESULTS: case CONFIG_ENGINE: case PLAN_CONFIG: n = 1; break; // the caller has made the descriptors
  case CONFIG_WORKSPACE: case PLAN_WORKSPACE: case ENGINE_INDEX:
    n = 1;
    if (values && wanted > 0) *(int64_t *)values = 0;
    break;
  case GRAPH_ENGINES:
    n = 1;
    if (values && wanted > 0) *(int64_t *)values = 1;
    break;
  case PLAN_JSON:
    n = sizeof json;
    if (values && wanted >= n) memcpy(values, json, n);
    break;
  }
  if (count) *count = n;
  return 0;
}
