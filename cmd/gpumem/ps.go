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
	"gpumem/share/given"
)

func psCommand() *cobra.Command {
	var words []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the programs on every GPU",
		Long: `Show every program on every GPU: its process, user, age and command, what it
holds, its lease, its framework, and what its environment asks for. Programs
that have a lease and hold nothing yet are there, and who waits for one, in
turn. Where several programs share a lease, and where the program of a lease has
ended and left it to another process, that is said.

"parent gone" marks a program that the one that started it has left behind, such
as a worker whose parent was killed. What cannot be told is said to be so: in a
container the driver may know programs by other numbers. Nothing is ended.

Without --device: every GPU that the driver shows, and the device that
$GPUMEM_DEVICE names; without a driver and a named device there are none. --json
is a state file for gpumem doctor, in which driver.up says whether the driver
answers.`,
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
	driver  *open.Driver // nil: not asked for
	notes   []string     // for stderr
}

type psDevice struct {
	open.Listed
	programs []psProgram   // what holds most first
	leased   uint64        // bytes, by all leases
	waiting  []share.Entry // whose turn is next first
}

// A psProgram holds memory on a device, or a lease there.
type psProgram struct {
	gpu.Process
	lease  *psLease         // that it is under; several are added up
	info   *proc.Info       // nil: not told
	why    string           // it is not told
	loaded []proc.Framework // nil: none, or not told
	opaque bool             // what it has loaded is not told
	left   *share.Entry     // the lease whose program has ended and left it to this one
	hooked *bool            // its environment has the Python hook; nil: it is in no lease, or not told
	asks   *policy.Answer   // nil: it has no framework that is known here, or not told
}

// A psLease is all leases of one process on a device.
type psLease struct {
	share.Entry        // of the first; Bytes of all
	programs    int    // that use the device under it
	used        uint64 // bytes, by those of which it is known
}

// psLeases are those of this machine, and all on the devices with these keys.
var psLeases = func(keys []string) ([]share.Entry, error) {
	if runtime.GOOS != "linux" { // where nobody has a lease
		return nil, nil
	}
	r, err := share.Open(os.Getenv(share.EnvDir))
	if err != nil {
		return nil, err
	}
	return r.List(keys...) // with an error, those that can be read
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
		listed, driver, err := listDevices(words)
		if err != nil {
			return nil, err
		}
		state := &psState{at: time.Now(), driver: driver}
		if note := driverNote(listed, driver); note != "" {
			state.notes = append(state.notes, note)
		}
		var keys []string
		for _, d := range listed {
			if key := deviceKey(d); key != "" {
				keys = append(keys, key)
			}
		}
		leases, err := psLeases(keys)
		if err != nil {
			state.notes = append(state.notes, fmt.Sprintf("leases: %v", err))
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
		f.environ, f.readErr = proc.Environ(pid)
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
func (s *psState) fill(listed []open.Listed, leases []share.Entry) {
	var pids []int
	for _, d := range listed {
		for _, p := range d.Processes {
			pids = append(pids, p.PID)
		}
	}
	for _, l := range leases {
		if pid := seenAs(l); pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	facts := psFactsOf(slices.Compact(pids))
	for _, d := range listed {
		s.devices = append(s.devices, psDeviceOf(d, leases, facts))
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

// seenAs returns the process of a lease by its number here, 0 if there is none to
// be seen.
func seenAs(l share.Entry) int {
	switch {
	case l.PID > 0 && !l.Elsewhere && !l.Ended:
		return l.PID
	case len(l.HeldBy) > 0:
		return l.HeldBy[0].PID
	}
	return 0
}

// psProcess is a process; its number alone may be another's.
type psProcess struct {
	pid              int
	start, namespace uint64
}

func processOf(l share.Entry) psProcess { return psProcess{l.PID, l.Start, l.Namespace} }

func psDeviceOf(listed open.Listed, leases []share.Entry, facts map[int]*psFacts) psDevice {
	d := psDevice{Listed: listed}
	var held []share.Entry
	of := map[psProcess]*psLease{}
	var order []*psLease
	key := deviceKey(listed)
	for _, l := range leases {
		if l.Device != key || key == "" {
			continue
		}
		if l.State == share.Waits {
			d.waiting = append(d.waiting, l)
			continue
		}
		d.leased += l.Bytes
		held = append(held, l)
		if first := of[processOf(l)]; first != nil && l.PID > 0 {
			first.Bytes += l.Bytes
			continue
		}
		one := &psLease{Entry: l}
		order = append(order, one)
		of[processOf(l)] = one
	}
	slices.SortStableFunc(d.waiting, func(a, b share.Entry) int { return cmp.Compare(a.Place, b.Place) })

	owners := share.NewOwners(held)
	for _, p := range listed.Processes {
		program := psProgram{Process: p}
		program.tell(facts[p.PID], !d.Simulated)
		if l, ok := owners.Of(p.PID); ok && program.info != nil {
			program.lease = of[processOf(l)]
			program.lease.programs++
			program.lease.used += p.Used
			program.leftBy(l)
			program.findHook(facts[p.PID])
		}
		d.programs = append(d.programs, program)
	}
	for _, l := range order {
		if l.programs > 0 {
			continue
		}
		pid := seenAs(l.Entry)
		program := psProgram{Process: gpu.Process{PID: pid}, lease: l}
		if f := facts[pid]; f != nil && f.err == nil && (f.info.UID == l.UID || len(l.HeldBy) > 0) {
			program.tell(f, false)
			program.leftBy(l.Entry)
			program.findHook(f)
		} else {
			program.why = unseen(l.Entry)
		}
		d.programs = append(d.programs, program)
	}
	d.sort("memory")
	return d
}

// leftBy notes that a lease's own process has ended.
func (p *psProgram) leftBy(l share.Entry) {
	if l.Ended {
		p.left = &l
	}
}

// findHook fills in hooked, for a program of a lease. The folder of the hook in a
// container is not this one's.
func (p *psProgram) findHook(f *psFacts) {
	if p.info != nil && p.info.Container == "" && f.readErr == nil {
		hooked := given.Hooked(f.environ)
		p.hooked = &hooked
	}
}

// unseen says why a lease's process is not shown.
func unseen(l share.Entry) string {
	switch {
	case l.PID == 0:
		return "the files of a lease are gone, and the process that holds it cannot be seen from here"
	case l.Elsewhere:
		return fmt.Sprintf("process %d of a lease is in another pid namespace, such as a container, and cannot be seen from here", l.PID)
	case l.Ended:
		return fmt.Sprintf("process %d has ended and left its lease to one that cannot be seen from here", l.PID)
	}
	return "its process cannot be seen from here"
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
		p.info, p.loaded, p.opaque = &f.info, f.loaded, f.loadErr != nil || len(f.loaded) > 0 && f.readErr != nil
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
