// What the processes of a program held, from the lines that the simulated driver writes.

package simulate

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"gpumem/device/sim"
)

// Use is what a process held of a GPU.
type Use struct {
	PID    int
	Device int    // its number, from 0
	Peak   uint64 // bytes that it held at most, with its context
	// All is what all processes held at most together, just after this one had taken some.
	All   uint64
	Ended bool // by exit. Of one that was killed, or that runs on, Peak and All may be a 64th too low
}

// Used is what the processes of a program held.
type Used struct {
	List []Use // the most first
	// Unprepared are processes of Python that opened the driver without the start-up file.
	Unprepared []int
	Unread     int // lines that are none
}

// All returns what all processes held at most of a GPU at one time.
func (u *Used) All(device int) (most uint64) {
	for _, use := range u.List {
		if use.Device == device {
			most = max(most, use.All)
		}
	}
	return most
}

// Busy returns the time of all work that each engine of the devices was given since New, by any program; of engine
// sim.Kernels of device 0 it is [0][0]. It is 0 where work takes no time (GPUMEM_SIM_KERNEL, see preload/sim).
func (g *GPU) Busy() ([][sim.Engines]time.Duration, error) {
	busy, err := sim.LookBusy(g.file)
	for i := range min(len(busy), len(g.before)) {
		for e := range busy[i] {
			busy[i][e] -= g.before[i][e]
		}
	}
	return busy, err
}

// Used returns what the processes held that used a GPU so far.
func (g *GPU) Used() (*Used, error) {
	var used Used
	f, err := os.Open(g.folder.file("peaks"))
	if errors.Is(err, os.ErrNotExist) {
		return &used, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		used.add(s.Text())
	}
	slices.SortStableFunc(used.List, func(a, b Use) int { return cmp.Compare(b.Peak, a.Peak) })
	return &used, s.Err()
}

// add adds a line: PID DEVICE PEAK ALL, with "end" behind the last of a process, or PID "python". The last of a
// full disk is cut.
func (u *Used) add(line string) {
	var use Use
	var end string
	n, _ := fmt.Sscanf(line, "%d %d %d %d %s", &use.PID, &use.Device, &use.Peak, &use.All, &end)
	switch {
	case n >= 4:
		use.Ended = end == "end"
	case n == 1 && line == fmt.Sprintf("%d python", use.PID):
		u.Unprepared = append(u.Unprepared, use.PID)
		return
	default:
		u.Unread++
		return
	}
	i := slices.IndexFunc(u.List, func(known Use) bool { return known.PID == use.PID && known.Device == use.Device })
	if i < 0 {
		u.List = append(u.List, use)
		return
	}
	known := &u.List[i]
	known.Peak, known.All, known.Ended = max(known.Peak, use.Peak), max(known.All, use.All), use.Ended
}
