//go:build libgpumem

package main

/*
#include "gpumem.h"

static uint64_t gate_passed(const struct gm_gate *g) { return g->passed(); }
static int gate_close(const struct gm_gate *g, uint64_t within) { return g->close(within); }
static void gate_open(const struct gm_gate *g) { g->open(); }
static int gate_waiting(const struct gm_gate *g, uint64_t within) { return g->waiting(within); }
static int gate_running(const struct gm_gate *g) { return g->running(); }
static int gate_tied(const struct gm_gate *g) { return g->tied(); }
static int gate_look(const struct gm_gate *g, const char *libnvml) { return g->look(libnvml); }
*/
import "C"

import (
	"time"

	"gpumem/device/cuda"
	"gpumem/preload/internal/shim"
)

// gate is the front's.
type gate struct{ of *C.struct_gm_gate }

func (g gate) Passed() uint64 { return uint64(C.gate_passed(g.of)) }

func (g gate) Close(within time.Duration) error {
	switch C.gate_close(g.of, nanoseconds(within)) {
	case 0:
		return nil
	case C.GM_GATE_BUSY:
		return shim.ErrGateBusy
	}
	return shim.ErrGateUnseen
}

func (g gate) Open() { C.gate_open(g.of) }

func (g gate) Waiting(within time.Duration) int {
	return int(C.gate_waiting(g.of, nanoseconds(within)))
}

func (g gate) Running() error {
	switch code := C.gate_running(g.of); code {
	case 0:
		return nil
	case C.GM_RUNNING:
		return shim.ErrRunning
	case C.GM_CAPTURING:
		return shim.ErrCapture
	default:
		return cuda.Code(code)
	}
}

// tied is what ties the memory of the process to others now.
func (g gate) tied() C.int { return C.gate_tied(g.of) }

// look is what else does, see gpumem.h.
func (g gate) look(libnvml *C.char) C.int { return C.gate_look(g.of, libnvml) }

func nanoseconds(d time.Duration) C.uint64_t { return C.uint64_t(max(d, 0)) }
