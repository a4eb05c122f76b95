// Package machinetest has snapshots of machines for tests.
package machinetest

import (
	"time"

	"gpumem/node/machine"
)

// Now is the time of the snapshots.
var Now = time.Date(2026, 9, 21, 12, 0, 0, 0, time.UTC)

// GiB returns n GiB, for fields that may be unknown.
func GiB(n float64) *uint64 {
	bytes := uint64(n * (1 << 30))
	return &bytes
}

// Example returns a snapshot that has everything: leases, processes that are unknown, a
// command with control characters, programs that wait, a device that tells little.
func Example() *machine.Snapshot {
	known := func(pid int, ago time.Duration, command ...string) machine.Program {
		gone, parent, started := false, 1, Now.Add(-ago)
		return machine.Program{PID: pid, Name: "python3", ParentGone: &gone, Parent: &parent, User: "ann", Command: command, Frameworks: []string{},
			Started: &started, Start: uint64(1000*time.Hour-ago) / uint64(10*time.Millisecond)}
	}
	first := known(11, 26*time.Hour, "/usr/bin/python3", "train.py")
	first.Kind, first.Used, first.Frameworks, first.Releases = "compute", GiB(20), []string{"jax"}, []string{"0.4.30"}
	first.Asks = &machine.Asks{Framework: "jax", Version: "0.4.30", Summary: "Takes 20 GiB of the 80 GiB at the first operation, and keeps it.",
		Brief: "20 GiB at once (1 warning)", Allocator: "bfc", First: 20 << 30, Limit: GiB(20), Warnings: 1}
	first.Lease = &machine.Lease{Bytes: 22 << 30, Programs: 1, InUse: 20 << 30}
	second := known(12, 65*time.Minute, "ray::f\x1b[31m")
	second.Kind, second.Used, second.Frameworks, second.Container = "compute", GiB(1), nil, "0123456789ab"
	*second.ParentGone = true
	fourth := known(14, 3*time.Second)
	fourth.Lease = &machine.Lease{Bytes: 4 << 30}
	return &machine.Snapshot{Time: Now, Devices: []machine.Device{{
		Spec: "cuda:0", Name: "NVIDIA H200", UUID: "GPU-1", Total: 143156 << 20, Free: GiB(39.0625), Used: GiB(100.73828125), Leased: 30 << 30,
		Programs: []machine.Program{first, second,
			{PID: 13, Name: "Xorg", Kind: "graphics", Unknown: "process 13: there is no such process"},
			fourth,
			{Lease: &machine.Lease{Bytes: 4 << 30}, User: "3999999999", Command: []string{"python3", "x.py"}, Unknown: "its process cannot be seen from here"},
		},
		Waiting: []machine.Waiting{
			{Wants: 30 << 30, PID: 15, Command: []string{"./a"}, Since: Now.Add(-90 * time.Second)},
			{Place: 1, Since: Now.Add(-time.Second), Stopped: true},
		},
	}, {
		Index: 1, Spec: "cuda:1", Name: "NVIDIA A100 MIG 1g.5gb", UUID: "MIG-2", Total: 4864 << 20, Free: GiB(4.75), Used: GiB(0), Display: true,
		Notes: []string{"NVML: no permission"},
	}}}
}
