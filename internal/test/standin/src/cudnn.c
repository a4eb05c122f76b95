// A stand-in for libcudnn.so.9: it says which version it is, and offers one engine for each
// graph, which needs no workspace and does nothing.

#include <stdint.h>
#include <string.h>

#define FN __attribute__((visibility("default"))) int

FN cudnnCreate(void **h) { *h = (void *)0x50; return 0; }
FN cudnnGetProperty(int t, int *v) { *v = t == 0 ? 9 : t == 1 ? 20 : 0; return 0; }
__attribute__((visibility("default"))) uint64_t cudnnGetVersion(void) { return 92000; }
__attribute__((visibility("default"))) uint64_t cudnnGetCudartVersion(void) { return 12090; }
__attribute__((visibility("default"))) const char *cudnnGetErrorString(int s) { (void)s; return "ok"; }

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
