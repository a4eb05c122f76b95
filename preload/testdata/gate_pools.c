// In the place of libgpumem.so: pools that serve nothing, and that hand the gate to a test.

#include "gpumem.h"

const struct gm_gate *test_gate; // 0: the process has none
int test_pools_loaded;

// All but gmInit answer 0, whatever they are given.
#define gmInit gmInit_of_list
#define F(type, name, args) type name() { return (type)0; }
GM_FUNCTIONS(F)
#undef gmInit

int gmInit(struct gm_settings *s) { return test_gate = s->gate, test_pools_loaded = 1, 0; }
