package screen_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/machinetest"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
	"gpumem/node/screen"
)

func TestList(t *testing.T) {
	const want = `cuda:0 NVIDIA H200: 139.80 GiB, 100.74 GiB used, 39.06 GiB free, 30 GiB leased
  pid  user          age        holds   lease  framework   asks for                    container     mark         command
   11  ann         1d02h       20 GiB  22 GiB  jax 0.4.30  20 GiB at once (1 warning)  -             -            python3 train.py
   12  ann         1h05m        1 GiB       -  unknown     -                           0123456789ab  parent gone  ray::f?[31m
   13  -               -      unknown       -  -           -                           -             -            unknown
   14  ann            3s  nothing yet   4 GiB  -           -                           -             -            [python3]
    -  3999999999      -  nothing yet   4 GiB  -           -                           -             -            python3 x.py
  process 15 has waited for 30 GiB for 1m (next): a
  a program has waited for all that can be shared for 1s (1 before it, stopped: it is passed over)
  unknown: process 13: there is no such process
  unknown: its process cannot be seen from here

cuda:1 NVIDIA A100 MIG 1g.5gb: 4.75 GiB, 0 B used, 4.75 GiB free, drives a display
  no program holds memory
  NVML: no permission
`
	if diff := cmp.Diff(want, screen.List(machinetest.Example())); diff != "" {
		t.Error(diff)
	}
	if got := screen.List(&machine.Snapshot{}); got != "no devices\n" {
		t.Errorf("%q", got)
	}
	blind := machine.Device{Spec: "cuda:0", Name: "cuda:0", Total: 1 << 30}
	if got := screen.List(&machine.Snapshot{Devices: []machine.Device{blind}}); !strings.HasPrefix(got, "cuda:0: 1 GiB, used unknown\n") {
		t.Errorf("%q", got)
	}
}

// TestListContainers: a program's container has its names, and a lease without a program
// those that it is for.
func TestListContainers(t *testing.T) {
	started := machinetest.Now.Add(-5 * time.Second)
	trainer := machine.Container{ID: strings.Repeat("a", 64), Namespace: "team-a", Pod: "trainer", Name: "main"}
	d := machine.Device{Spec: "cuda:0", Total: 80 << 30, Leased: 9 << 30, Waiting: []machine.Waiting{}, Programs: []machine.Program{
		{PID: 11, Name: "python3", Kind: "compute", User: "ann", Command: []string{"train"}, Frameworks: []string{}, Started: &started, Container: "aaaaaaaaaaaa", Pod: &trainer,
			Lease: &machine.Lease{Bytes: 6 << 30, Programs: 1, Sum: &machine.PoolUse{Held: 1 << 30}, Containers: []machine.Container{trainer, {ID: "b"}}}},
		{Name: "team-b/x/y", Lease: &machine.Lease{Bytes: 3 << 30, Containers: []machine.Container{{Namespace: "team-b", Pod: "x", Name: "y"}}, MoreContainers: 1}},
	}}
	const want = `cuda:0: 80 GiB, used unknown, 9 GiB leased
  pid  user  age        holds  lease  container              command
   11  ann    5s      unknown  6 GiB  team-a/trainer/main    train
    -  -       -  nothing yet  3 GiB  team-b/x/y and 1 more  no program yet
  the lease of team-a/trainer/main and 1 more: 1 GiB of its 6 GiB held (pool 1 GiB, 0 B of it in use), at most 0 B in use so far
`
	if diff := cmp.Diff(want, screen.List(&machine.Snapshot{Time: machinetest.Now, Devices: []machine.Device{d}})); diff != "" {
		t.Error(diff)
	}
}

// TestListPool: the pools of a lease's programs have columns, and the lease a line.
func TestListPool(t *testing.T) {
	started := machinetest.Now.Add(-5 * time.Second)
	program := func(pid int, pool machine.PoolUse, l *machine.Lease) machine.Program {
		l.Programs++
		if l.Sum == nil {
			l.Sum = new(machine.PoolUse)
		}
		view.AddUse(l.Sum, pool)
		return machine.Program{PID: pid, Name: "python3", Kind: "compute", User: "ann", Command: []string{"python3", "train.py"}, Frameworks: []string{}, Started: &started, Pool: &pool, Lease: l}
	}
	l := &machine.Lease{Bytes: 6 << 30, Holder: 11}
	d := machine.Device{Spec: "cuda:0", Total: 80 << 30, Leased: 6 << 30, Waiting: []machine.Waiting{}, Programs: []machine.Program{
		program(11, machine.PoolUse{Held: 2 << 30, InUse: 1 << 30, PeakHeld: 3 << 30, PeakInUse: 3 << 30, Outside: 1 << 29, Refused: 1, DriverCalls: 40}, l),
		program(12, machine.PoolUse{Held: 1 << 30, InUse: 1 << 30, PeakHeld: 1 << 30, PeakInUse: 1 << 30, Outside: 1 << 29, Charged: 1 << 28, Refused: 1}, l),
	}}
	const want = `cuda:0: 80 GiB, used unknown, 6 GiB leased
  pid  user  age    holds  lease   pool  in use   peak  command
   11  ann    5s  unknown  6 GiB  2 GiB   1 GiB  3 GiB  python3 train.py
   12  ann    5s  unknown  6 GiB  1 GiB   1 GiB  1 GiB  python3 train.py
  the lease of process 11: 4.25 GiB of its 6 GiB held (pool 3 GiB, 2 GiB of it in use, 256 MiB by the program itself, 1 GiB outside), at most 4 GiB in use so far, 2 requests refused
`
	if diff := cmp.Diff(want, screen.List(&machine.Snapshot{Time: machinetest.Now, Devices: []machine.Device{d}})); diff != "" {
		t.Error(diff)
	}
}

// byTurns returns a snapshot of a GPU that four programs share by turns.
func byTurns(int) *machine.Snapshot {
	started := machinetest.Now.Add(-5 * time.Minute)
	since := machinetest.Now.Add(-90 * time.Second)
	l := &machine.Lease{Bytes: 24 << 30, Holder: 10, Sum: new(machine.PoolUse)}
	d := machine.Device{Spec: "cuda:0", Total: 24 << 30, Used: machinetest.GiB(19), Free: machinetest.GiB(5), Leased: 24 << 30, Waiting: []machine.Waiting{}}
	add := func(pid int, gib float64, turn machine.Turn, command ...string) {
		used := machinetest.GiB(gib)
		pool := machine.PoolUse{Held: *used, InUse: *used + turn.OnHost, PeakInUse: 18 << 30}
		view.AddUse(l.Sum, pool)
		l.Programs++
		l.InUse += *used
		turn.Since = since
		d.Programs = append(d.Programs, machine.Program{PID: pid, Start: uint64(pid), Name: "python3", Kind: "compute", User: "ann", Command: command, Frameworks: []string{},
			Started: &started, Used: used, Pool: &pool, Lease: l, Turn: &turn})
	}
	add(11, 16, machine.Turn{State: "in", Movable: 15 << 30, Swaps: 2, Seconds: 3.25}, "python3", "train.py")
	add(14, 2, machine.Turn{State: "in", NotAsked: "it has an NCCL communicator of several ranks"}, "python3", "rank.py")
	add(12, .5, machine.Turn{State: "away", OnHost: 17 << 30, Swaps: 3, Seconds: 3.5}, "python3", "-m", "ipykernel_launcher")
	add(13, .5, machine.Turn{State: "waiting", OnHost: 9 << 30, Wants: 9 << 30, Place: new(0), Swaps: 1, Seconds: 1.5,
		HeldBy: []machine.TurnHolder{{PID: 11, Bytes: 16 << 30, Why: "its turn is not over"}}}, "python3", "evaluate.py")
	return &machine.Snapshot{Time: machinetest.Now, Devices: []machine.Device{d}}
}

// TestListTurns: where the memory of programs that share a GPU by turns is has columns, and a line says the rest.
func TestListTurns(t *testing.T) {
	const want = `cuda:0: 24 GiB, 19 GiB used, 5 GiB free, 24 GiB leased
  pid  user  age    holds  turn   on host   lease     pool     in use    peak  command
   11  ann    5m   16 GiB  in           -  24 GiB   16 GiB     16 GiB  18 GiB  python3 train.py
   14  ann    5m    2 GiB  in           -  24 GiB    2 GiB      2 GiB  18 GiB  python3 rank.py
   12  ann    5m  512 MiB  away    17 GiB  24 GiB  512 MiB  17.50 GiB  18 GiB  python3 -m ipykernel_launcher
   13  ann    5m  512 MiB  waits    9 GiB  24 GiB  512 MiB   9.50 GiB  18 GiB  python3 evaluate.py
  the lease of process 10: 19 GiB of its 24 GiB held (pool 19 GiB, 45 GiB in use with what is on the host), at most 72 GiB in use so far
  process 11: 2 swaps so far, the last took 3.25 s
  process 14: not asked to leave: it has an NCCL communicator of several ranks
  process 12: away for 1m, 17 GiB on the host, and it has no work; 3 swaps so far, the last took 3.5 s
  process 13: waits for 1m for 9 GiB (next), with 9 GiB on the host: process 11 holds 16 GiB (its turn is not over); 1 swap so far, the last took 1.5 s
`
	if diff := cmp.Diff(want, screen.List(byTurns(0))); diff != "" {
		t.Error(diff)
	}
}
