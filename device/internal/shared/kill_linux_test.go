package shared

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"gpumem/device"
)

var kills = flag.Int("kills", 60, "how often TestKill kills; 10000 for the long run")

const walkers = 7

// childWalk PATH BOARD INDEX SEED: takes and gives at random for ever, and
// counts its calls on the board; but not longer than the test lives.
func childWalk(args []string) error {
	path := args[0]
	b, err := openBoard(args[1])
	if err != nil {
		return err
	}
	index, _ := strconv.Atoi(args[2])
	seed, _ := strconv.ParseUint(args[3], 10, 64)
	r := rand.New(rand.NewPCG(seed, 0))
	go func() {
		os.Stdin.Read(make([]byte, 1))
		os.Exit(1)
	}()
	f, err := Open(path)
	if err != nil {
		return err
	}
	var held [2]uint64
	for {
		dev := r.IntN(2)
		n := r.Uint64N(200)
		switch op := r.IntN(100); {
		case op < 45:
			err := f.Take(dev, n)
			if err == nil {
				held[dev] += n
			} else if err != device.ErrOutOfMemory {
				return err
			}
		case op < 90:
			n = min(n, held[dev])
			if err := f.Give(dev, n); err != nil {
				return err
			}
			held[dev] -= n
		case op < 96:
			if _, err := f.Free(dev); err != nil {
				return err
			}
		case op < 98:
			list, err := f.Processes(dev)
			if err != nil {
				return err
			}
			for _, p := range list {
				if p.PID == os.Getpid() && p.Used != held[dev] {
					return fmt.Errorf("I hold %d of device %d and am listed with %d", held[dev], dev, p.Used)
				}
			}
		default:
			if err := f.Close(); err != nil {
				return err
			}
			if f, err = Open(path); err != nil {
				return err
			}
			held = [2]uint64{}
		}
		b[index].n.Add(1)
	}
}

// TestKill kills processes at random moments while they take and give. At every
// look free and used add up and nobody is listed who was not started; what a
// killed one held is free before it is waited for; the others go on.
func TestKill(t *testing.T) {
	path := makeFile(t)
	f := openFile(t, path)
	must(t, f.Take(0, 10))
	b, boardPath := newBoard(t)
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	known := map[int]bool{os.Getpid(): true}
	var children [walkers]*child
	spawn := func(i int) {
		children[i] = start(t, "walk", path, boardPath, i, r.Uint64())
		known[children[i].Process.Pid] = true
	}
	looks := 0
	// listed says whether a process holds something, having checked all.
	listed := func(pid int) bool {
		looks++
		found := false
		for _, s := range look(t, path) {
			for _, p := range s.Processes {
				if !known[p.PID] {
					t.Fatalf("process %d is listed and was not started, or was waited for: %+v", p.PID, s)
				}
				found = found || p.PID == pid
			}
		}
		return found
	}
	for i := range children {
		spawn(i)
	}
	for range *kills {
		for end := time.Now().Add(time.Duration(r.IntN(3000)) * time.Microsecond); time.Now().Before(end); {
			listed(0)
		}
		i := r.IntN(walkers)
		victim := children[i]
		var before [walkers]uint64
		for j := range children {
			before[j] = b[j].n.Load()
		}
		must(t, victim.Process.Kill())
		if _, err := f.Free(1); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the killed process holds nothing", func() bool { return !listed(victim.Process.Pid) })
		for j := range children {
			if j != i {
				eventually(t, "the others go on", func() bool { return b[j].n.Load() > before[j] })
			}
		}
		victim.reap(t, true)
		delete(known, victim.Process.Pid)
		spawn(i)
	}
	for _, c := range children {
		must(t, c.Process.Kill())
	}
	eventually(t, "all is free", func() bool {
		a, errA := f.Free(0)
		b, errB := f.Free(1)
		must(t, errors.Join(errA, errB))
		listed(0)
		return a == 890 && b == 900
	})
	for _, c := range children {
		c.reap(t, true)
	}
	t.Logf("%d kills, %d looks", *kills, looks)
}

// childPairs PATH BOARD GOROUTINES PAIRS ROOM: once told to begin, each
// goroutine takes and gives 1 byte so often. With ROOM, that many may hold one
// at a time: board 0 counts them, apart from the file.
func childPairs(args []string) error {
	b, err := openBoard(args[1])
	if err != nil {
		return err
	}
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(args[2+i])
	}
	f, err := Open(args[0])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
	errs := make([]error, n[0])
	var wg sync.WaitGroup
	for g := range n[0] {
		wg.Go(func() {
			var longest time.Duration
			errs[g] = pairs(f, b, n[1], uint64(n[2]), &longest)
			for old := b[1].n.Load(); int64(longest) > int64(old) && !b[1].n.CompareAndSwap(old, uint64(longest)); {
				old = b[1].n.Load()
			}
		})
	}
	wg.Wait()
	fmt.Println("done")
	return errors.Join(errs...)
}

func pairs(f *File, b *board, n int, room uint64, longest *time.Duration) error {
	for range n {
		begin := time.Now()
		err := f.Take(0, 1)
		*longest = max(*longest, time.Since(begin))
		for room > 0 && err == device.ErrOutOfMemory {
			err = f.Take(0, 1)
		}
		if err != nil {
			return err
		}
		if room > 0 {
			if got := b[0].n.Add(1); got > room {
				return fmt.Errorf("%d hold a byte of %d", got, room)
			}
			b[0].n.Add(^uint64(0))
		}
		if err := f.Give(0, 1); err != nil {
			return err
		}
	}
	return nil
}

// TestStress: 64 goroutines of 8 processes and room for 40 at a time.
func TestStress(t *testing.T) {
	d := plain()
	d.Total, d.Used = 100, 0 // 40 beside the display
	path := makeFile(t, d)
	f := openFile(t, path)
	_, boardPath := newBoard(t)
	crowd := startPairs(t, path, boardPath, 500, 40)
	for _, c := range crowd {
		c.in.Close()
	}
	for _, c := range crowd {
		c.reap(t, false)
	}
	if n, err := f.Free(0); n != 40 || err != nil {
		t.Errorf("at the end free %d, %v", n, err)
	}
	look(t, path)
}

// startPairs starts 8 children of 8 goroutines that wait to begin.
func startPairs(t testing.TB, path, boardPath string, n, room int) []*child {
	var crowd []*child
	for range 8 {
		crowd = append(crowd, start(t, "pairs", path, boardPath, 8, n, room))
	}
	for _, c := range crowd {
		if said := c.line(); said != "ready" {
			c.reap(t, false)
		}
	}
	return crowd
}
