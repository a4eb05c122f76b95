//go:build libgpumem

package main

// #include "gpumem.h"
import "C"

import (
	"gpumem/node/ledger"
	"gpumem/policy"
)

// stays returns why the memory is not to leave now, of what the front and the pool know.
func (g *gpu) stays() ledger.Reason {
	tied := settings.gate.tied()
	switch {
	case settings.policy.Kind == policy.Async:
		return ledger.OtherPolicy
	case turning.Load() > 1: // one gate for several GPUs, each of which would have to be asked
		return ledger.SeveralGPUs
	case g.unified.Load():
		return ledger.IntegratedGPU
	case g.peers.Load():
		return ledger.PeerAccess
	case tied&C.GM_SHARED != 0:
		return ledger.SharingMemory
	case tied&C.GM_MANAGED != 0:
		return ledger.ManagedMemory
	case g.mapsMost():
		return ledger.OwnMappings
	}
	return ledger.NoReason
}

// mapsMost reports whether the program has mapped more memory by itself than its pool has: that
// stays on the GPU. Less does no harm, such as the buffers of NCCL with one rank.
func (g *gpu) mapsMost() bool {
	p, c := g.pool.Load(), g.charges.Load()
	if p == nil || c == nil {
		return false
	}
	held, _ := p.Reserved()
	return c.MappedBytes() > held
}

// look returns why not, of what the system knows.
func look() ledger.Reason {
	switch ties := settings.gate.look(settings.libnvml); {
	case ties&C.GM_CONFIDENTIAL != 0:
		return ledger.ConfidentialGPU
	case ties&C.GM_REGISTERED != 0:
		return ledger.RegisteredMemory
	case ties&C.GM_RANKS != 0:
		return ledger.Communicating
	}
	return ledger.NoReason
}
