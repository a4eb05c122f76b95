package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	gpu "gpumem/device"
	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/policy"
	"gpumem/share"
)

func psCommand() *cobra.Command {
	var words []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Show every program on every GPU: whose it is, what it holds, what it asks for",
		Long: `Show every program on every GPU: its process, user, age and command, what it
holds, its lease, its framework, and what its environment asks for. Programs
that have a lease and hold nothing yet are there, and who waits for one, in
turn.

"parent gone" marks a program that the one that started it has left behind, such
as a worker whose parent was killed. What cannot be told is said to be so: in a
container the driver may know programs by other numbers. Nothing is ended.

Without --device: every GPU that the driver shows, and the device that
$GPUMEM_DEVICE names. --json is a state file for gpumem doctor.`,
		Example: `  gpumem ps
  gpumem ps --device sim@/dev/shm/gpu
  gpumem ps --json > state.json`,
		Args: noWords("ps"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			look, err := psLooker(words)
			if err != nil {
				return err
			}
			state, err := look()
			if err != nil {
				return err
			}
			state.writeNotes(cmd.ErrOrStderr())
			if asJSON {
				return writePsJSON(cmd.OutOrStdout(), state)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), psText(state, 0))
			return err
		},
	}
	psFlags(cmd, &words, &asJSON)
	return cmd
}

// psFlags are those that ps and top share.
func psFlags(cmd *cobra.Command, words *[]string, asJSON *bool) {
	cmd.Flags().StringArrayVar(words, "device", nil, "only this `DEVICE`: cuda:N or sim@FILE[,device=N]; repeat for several")
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

func noWords(command string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%s takes no words but flags, and got %q; to look at one device: gpumem %s --device %s", command, args[0], command, args[0])
		}
		return nil
	}
}

// A psState is who uses which GPU, at one moment.
type psState struct {
	at      time.Time
	devices []psDevice
	notes   []string // for stderr
}

type psDevice struct {
	open.Listed
	programs []psProgram // what holds most first
	leased   uint64      // bytes, by all leases
	waiting  []psLease   // whose turn is next first
}

// A psProgram holds memory on a device, or a lease there.
type psProgram struct {
	gpu.Process
	lease  *psLease         // that it is under; several are added up
	info   *proc.Info       // nil: not told
	why    string           // it is not told
	loaded []proc.Framework // nil: none, or not told
	opaque bool             // what it has loaded is not told
	asks   *policy.Answer   // nil: it has no framework that is known here, or not told
}

// A psLease is a lease, or a place in the queue for one.
type psLease struct {
	Device  string // as deviceKey has it
	Waits   bool
	Place   int    // of one that waits; 0 is next
	Asleep  bool   // one that waits is stopped, and passed over
	Bytes   uint64 // of one that waits: 0 for all that can be had
	PID     int    // 0: not known yet
	UID     int
	Command []string
	Since   time.Time
}

// psLeases are those of this machine, on all devices.
var psLeases = func() ([]psLease, error) {
	if runtime.GOOS != "linux" { // where nobody has a lease
		return nil, nil
	}
	r, err := share.Open(os.Getenv(share.EnvDir))
	if err != nil {
		return nil, err
	}
	entries, err := r.List() // with an error, those that can be read
	var list []psLease
	for _, e := range entries {
		list = append(list, psLease{
			Device: e.Device, Waits: e.State == share.Waits, Place: e.Place, Asleep: e.Asleep, Bytes: e.Bytes,
			PID: e.PID, UID: e.UID, Command: e.Command, Since: e.Since,
		})
	}
	return list, err
}

// deviceKey is the device's name in the registry of leases, the same for
// everyone who means that GPU; empty for one that nobody shares.
func deviceKey(d open.Listed) string {
	switch {
	case !d.Simulated && d.UUID == "":
		return fmt.Sprintf("cuda:%d", d.Ordinal)
	case !d.Simulated:
		return d.UUID
	}
	file, ok := strings.CutPrefix(d.Words, "sim@")
	if !ok {
		return ""
	}
	file, _, _ = strings.Cut(file, ",")
	if abs, err := filepath.Abs(file); err == nil {
		file = abs
	}
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	return fmt.Sprintf("sim@%s,device=%d", file, d.Ordinal)
}

// psLooker reads the words of the devices; what it gives looks at them, as often
// as it is called.
func psLooker(words []string) (func() (*psState, error), error) {
	for _, w := range words {
		spec, err := open.Parse(w)
		if err != nil {
			return nil, err
		}
		if spec.Create != nil {
			return nil, fmt.Errorf("device %q: create makes a device, and here one is looked at; make it with gpumem devices", w)
		}
	}
	return func() (*psState, error) {
		listed, note, err := listDevices(words)
		if err != nil {
			return nil, err
		}
		state := &psState{at: time.Now()}
		if note != "" {
			state.notes = append(state.notes, note)
		}
		leases, err := psLeases()
		if err != nil {
			state.notes = append(state.notes, fmt.Sprintf("not all leases are shown: %v", err))
		}
		state.fill(listed, leases)
		return state, nil
	}, nil
}

func (s *psState) writeNotes(w io.Writer) {
	for _, n := range s.notes {
		fmt.Fprintln(w, "gpumem: "+oneLine(n))
	}
}

// psFacts is what the system tells of a process.
type psFacts struct {
	info             proc.Info
	err              error // there is no more
	loaded           []proc.Framework
	environ          []string
	loadErr, readErr error // of the two above
}

// psFactsOf looks at processes, several at once: the list of what a framework
// has mapped is long, and the kernel writes it slowly.
func psFactsOf(pids []int) map[int]*psFacts {
	all := make([]psFacts, len(pids))
	atOnce(len(pids), func(i int) {
		f, pid := &all[i], pids[i]
		if f.info, f.err = proc.Look(pid); f.err != nil {
			return
		}
		f.loaded, f.loadErr = proc.Frameworks(pid)
		if len(f.loaded) > 0 {
			f.environ, f.readErr = proc.Environ(pid)
		}
	})
	facts := map[int]*psFacts{}
	for i, pid := range pids {
		facts[pid] = &all[i]
	}
	return facts
}

// atOnce calls do for each number below n, as many at once as there are
// processors.
func atOnce(n int, do func(i int)) {
	next := make(chan int)
	var group sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		group.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
}

// fill finds out about every program of the devices and leases.
func (s *psState) fill(listed []open.Listed, leases []psLease) {
	var pids []int
	for _, d := range listed {
		for _, p := range d.Processes {
			pids = append(pids, p.PID)
		}
	}
	for _, l := range leases {
		if l.PID > 0 {
			pids = append(pids, l.PID)
		}
	}
	slices.Sort(pids)
	facts := psFactsOf(slices.Compact(pids))
	parents := map[int]int{}
	for _, d := range listed {
		s.devices = append(s.devices, psDeviceOf(d, leases, facts, parents))
	}
	s.explain(facts)
}

// explain fills in what programs ask for. It takes long, and programs that are
// started together mostly ask for the same.
func (s *psState) explain(facts map[int]*psFacts) {
	same := map[string][]*psProgram{}
	devices := map[string]policy.Device{}
	for _, d := range s.devices {
		for i := range d.programs {
			p := &d.programs[i]
			if len(p.loaded) == 0 || p.opaque {
				continue
			}
			on := p.found(d)
			key := fmt.Sprintf("%v %v %q", on, p.loaded, slices.DeleteFunc(slices.Clone(facts[p.PID].environ), everyday))
			same[key] = append(same[key], p)
			devices[key] = on
		}
	}
	keys := slices.Collect(maps.Keys(same))
	atOnce(len(keys), func(i int) {
		all := same[keys[i]]
		asks := asksFor(environmentOf(all[0].PID, facts[all[0].PID].environ), all[0].loaded, devices[keys[i]])
		for _, p := range all {
			p.asks = asks
		}
	})
}

// everyday says whether a line of an environment is of a variable that shells
// set anew for each program.
func everyday(line string) bool {
	name, _, _ := strings.Cut(line, "=")
	return slices.Contains([]string{"_", "PWD", "OLDPWD", "SHLVL", "HOSTNAME"}, name)
}

// found is the device as a program found it: what it holds was free then.
func (p *psProgram) found(d psDevice) policy.Device {
	free := d.Free + p.Used
	if d.Free == 0 && d.Used == 0 { // not told
		free = d.Total
	}
	return policy.Device{Ordinal: d.Ordinal, Total: d.Total, Free: min(d.Total, free), Granularity: d.Granularity, CCMajor: d.CCMajor}
}

func psDeviceOf(listed open.Listed, leases []psLease, facts map[int]*psFacts, parents map[int]int) psDevice {
	d := psDevice{Listed: listed}
	held := map[int]*psLease{} // by process
	var order []*psLease
	key := deviceKey(listed)
	for _, l := range leases {
		switch first := held[l.PID]; {
		case l.Device != key || key == "":
		case l.Waits:
			d.waiting = append(d.waiting, l)
		default:
			d.leased += l.Bytes
			if first != nil && l.PID > 0 {
				first.Bytes += l.Bytes
				continue
			}
			held[l.PID] = &l
			order = append(order, &l)
		}
	}
	delete(held, 0)
	slices.SortStableFunc(d.waiting, func(a, b psLease) int { return cmp.Compare(a.Place, b.Place) })

	used := map[*psLease]bool{}
	for _, p := range listed.Processes {
		program := psProgram{Process: p}
		program.tell(facts[p.PID], !d.Simulated)
		if program.info != nil && len(held) > 0 {
			program.lease = leaseOf(program.info, held, parents)
			used[program.lease] = true
		}
		d.programs = append(d.programs, program)
	}
	for _, l := range order {
		if used[l] {
			continue
		}
		program := psProgram{Process: gpu.Process{PID: l.PID}, lease: l}
		if f := facts[l.PID]; f != nil && f.err == nil && f.info.UID == l.UID {
			program.tell(f, false)
		} else {
			program.why = "its process cannot be seen from here"
		}
		d.programs = append(d.programs, program)
	}
	d.sort("memory")
	return d
}

// tell fills in who a program is. real: a driver gave its number, which is the
// machine's; here another process may have the same.
func (p *psProgram) tell(f *psFacts, real bool) {
	switch {
	case f.err != nil:
		p.why = f.err.Error()
	case p.Name != "" && p.Name != f.info.Name:
		p.why = fmt.Sprintf("process %d is %s here, and the GPU's is %s: its number is another one's here", p.PID, f.info.Name, p.Name)
	case real && !proc.HostPIDs() && !usesGPU(p.PID):
		p.why = fmt.Sprintf("process %d here has no GPU open: the GPU's is another, outside this container", p.PID)
	default:
		p.info, p.loaded, p.opaque = &f.info, f.loaded, f.loadErr != nil || f.readErr != nil
	}
}

// usesGPU says whether a process has the driver open: NVIDIA's, or Windows'
// under WSL.
func usesGPU(pid int) bool {
	for _, prefix := range []string{"/dev/nvidia", "/dev/dxg"} {
		if ok, _ := proc.Opens(pid, prefix); ok {
			return true
		}
	}
	return false
}

// asksFor is what an environment asks for in the words of the first framework
// that is known here, of its release where that is known.
func asksFor(env policy.Environment, loaded []proc.Framework, d policy.Device) *policy.Answer {
	for _, f := range loaded {
		for _, version := range []string{f.Version, ""} {
			if a, err := policy.Explain(env, policy.Framework{Name: f.Name, Version: version}, d); err == nil {
				return &a
			}
		}
	}
	return nil
}

// leaseOf is the lease of a process, or of the nearest one that it descends
// from, or of what leads its group or session, as package share counts; nil if
// there is none. parents are those that were looked up before.
func leaseOf(info *proc.Info, held map[int]*psLease, parents map[int]int) *psLease {
	pid := info.PID
	for range 100 { // deeper than any
		if l := held[pid]; l != nil {
			return l
		}
		if pid <= 1 {
			break
		}
		parent, ok := parents[pid]
		if !ok {
			info, _ := proc.Look(pid) // of one that has ended nothing is known
			parent = info.Parent
			parents[pid] = parent
		}
		pid = parent
	}
	if l := held[info.Group]; l != nil {
		return l
	}
	return held[info.Session]
}

// sort orders the programs: "memory" those that hold most first, "pid", or
// "age" the oldest first.
func (d *psDevice) sort(by string) {
	slices.SortStableFunc(d.programs, func(a, b psProgram) int {
		switch by {
		case "memory":
			if c := cmp.Compare(b.Used, a.Used); c != 0 {
				return c
			}
		case "age":
			if a.info != nil && b.info != nil {
				if c := a.info.Started.Compare(b.info.Started); c != 0 {
					return c
				}
			} else if (a.info == nil) != (b.info == nil) {
				if a.info != nil {
					return -1
				}
				return 1
			}
		}
		return cmp.Compare(a.PID, b.PID)
	})
}
