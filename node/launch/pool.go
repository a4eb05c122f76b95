// The driver library that serves a program's memory from a pool.

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"gpumem/device"
	"gpumem/internal/hostmem"
	"gpumem/node/internal/beside"
	"gpumem/node/ledger"
	"gpumem/node/library"
	"gpumem/node/runenv"
	"gpumem/node/share"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/size"
)

// NoPool is the value of [Plan].Pool for a program without the driver library, also
// inside a lease that has it.
const NoPool = "off"

// CheckPool reports why a name is no pool of the driver library: a policy of package
// frameworks other than env, with its keys.
func CheckPool(name string) error {
	if name == "env" || strings.HasPrefix(name, "env:") {
		return errors.New("env says what a framework would do; name a policy, such as elastic")
	}
	_, err := frameworks.Parse(name)
	return err
}

// findPool fills in what the pool needs, once the targets are known.
func (p *Plan) findPool() error {
	if p.Pool == "" {
		p.Pool = NoPool
		if outer := os.Getenv(runenv.EnvPool); outer != "" { // of the lease around this one
			p.Pool = outer
		}
	}
	if p.Pool == NoPool {
		if p.byTurns() {
			return errors.New("--lend and --turns need a pool, such as --pool elastic")
		}
		return nil
	}
	if err := CheckPool(p.Pool); err != nil {
		return fmt.Errorf("--pool: %w", err)
	}
	name, _, _ := strings.Cut(p.Pool, ":")
	if r, err := frameworks.ParseRelease(name); err == nil && r.Note() != "" {
		p.say("%s", r.Note())
	}
	if p.Limits.Allocator != "" { // with the pool of the lease around
		const text = "--allocator %s: the lease around has the pool %s, which serves JAX's memory; --pool off leaves it"
		return fmt.Errorf(text, p.Limits.Allocator, p.Pool)
	}
	q := &runenv.Pool{Name: p.Pool}
	var err error
	if q.Folder, err = library.Folder(p.getenv); err != nil {
		return fmt.Errorf("--pool %s: %w", p.Pool, err)
	}
	if p.simulated != "" && p.getenv(library.EnvDriver) == "" {
		const text = "--pool %s: %s is simulated and has no driver library, which the pool library needs; --simulate in the place of --device brings one, and %s names another"
		return fmt.Errorf(text, p.Pool, p.targets[0].words, library.EnvDriver)
	}
	if q.Driver, err = library.Driver(p.getenv, q.Folder); err != nil {
		return fmt.Errorf("--pool %s: %w", p.Pool, err)
	}
	if q.NVML, err = library.NVML(p.getenv, q.Folder); err != nil && !errors.Is(err, library.ErrNoDriver) {
		return fmt.Errorf("--pool %s: %w", p.Pool, err)
	}
	path, err := lookPath(p.Command[0])
	if err != nil {
		return err
	}
	if err := library.Check(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--pool %s: %w", p.Pool, err)
	}
	p.Limits.Pool = q
	return p.findTurns(q)
}

// AutoTurns are turns that last ten times what a way out and in takes, within 2 s and a minute.
const AutoTurns = ledger.AutoQuantum

// mayLeave are the pools whose memory may leave the GPU. Others take whole regions, of which most is
// copied for nothing, or have the driver's own pool beneath.
var mayLeave = []policy.Kind{policy.Elastic, policy.VMM, policy.Platform}

// byTurns reports whether the memory of the program's processes may leave.
func (p *Plan) byTurns() bool { return p.Lend != 0 || p.Turns != 0 }

// findTurns checks what turns need before anything starts.
func (p *Plan) findTurns(q *runenv.Pool) error {
	if !p.byTurns() {
		return nil
	}
	kind, err := frameworks.Parse(p.Pool)
	if err != nil {
		return err
	}
	switch {
	case p.Lend < 0:
		return fmt.Errorf("--lend %v: want a duration above 0", p.Lend)
	case !slices.Contains(mayLeave, kind.Kind):
		return fmt.Errorf("--lend and --turns: memory of the pool %s is not lent; that of --pool elastic, vmm and platform is", p.Pool)
	case len(p.targets) > 1:
		return errors.New("--lend and --turns: the memory of a program on several GPUs does not leave; give one by --gpu")
	}
	q.Lend, q.Turns, q.LendPinned = p.Lend, p.Turns, p.LendPinned
	return nil
}

// awayAtOnce returns how many of some leases of a size may be on the host at once: those that find no room
// on the GPU beside the others, and at least one.
func awayAtOnce(copies int, each, total uint64) int { return max(copies-int(total/each), 1) }

// checkHost returns why the host has no room for what may leave the leases.
func (p *Plan) checkHost(leases [][]*share.Lease, status []device.Status) error {
	if !p.byTurns() {
		return nil
	}
	room, err := hostmem.Free()
	if err != nil {
		return fmt.Errorf("--lend and --turns: how much memory the host has is not known: %w", err)
	}
	var most uint64
	for _, copies := range leases {
		for _, l := range copies {
			most = max(most, l.Bytes())
		}
	}
	away := awayAtOnce(len(leases), most, status[0].Total)
	if most <= room.Bytes/uint64(away) {
		return nil
	}
	which, way := "a lease of "+size.Format(most), "a smaller --mem"
	if away > 1 {
		which, way = fmt.Sprintf("%d leases of %s", away, size.Format(most)), "a smaller --mem, or fewer --copies"
	}
	const text = "--lend and --turns: what leaves %s needs as much of the host, and %s has room for %s; take %s"
	return fmt.Errorf(text, which, room.By, size.Format(room.Bytes), way)
}

// getenv returns a variable of the environment that the program's is made from.
func (p *Plan) getenv(name string) string { return policy.Environ(p.env).Get(name) }

// makeLedgers makes the files in which the programs of the leases count their memory.
func (p *Plan) makeLedgers(leases [][]*share.Lease, status []device.Status) error {
	if p.Limits.Pool == nil {
		return nil
	}
	if err := p.checkHost(leases, status); err != nil {
		return err
	}
	for _, copies := range leases {
		for i, l := range copies {
			if l.Part() != 0 && l.Within() == 0 { // it was made with the lease
				continue
			}
			h := ledger.Header{UUID: p.targets[i].uuid, Limit: max(l.Bytes(), l.Within()), Total: status[i].Total, Turns: p.byTurns()}
			err := ledger.Create(l.Ledger(), h)
			if errors.Is(err, fs.ErrExist) && l.Within() > 0 { // it counts for the whole lease
				var there *ledger.Ledger
				if there, err = ledger.Open(l.Ledger()); err == nil {
					if p.byTurns() && !there.Header().Turns {
						err = errors.New("the lease around has no turns: start it with --lend or --turns, too")
					}
					err = errors.Join(err, there.Close())
				}
			}
			if err != nil {
				return fmt.Errorf("--pool %s: %w", p.Pool, err)
			}
		}
	}
	return nil
}

// tellOutside writes what the processes of each copy are taken to hold outside of the pool into
// its leases, where lists find it also of a process that has lost its environment.
func (p *Plan) tellOutside(leases [][]*share.Lease, envs [][]string) {
	if p.Limits.Pool == nil {
		return
	}
	for c, copies := range leases {
		for _, l := range copies {
			if err := l.SetOutside(beside.Outside(envs[c])); err != nil {
				p.say("lists do not know what lies outside of the pool: %v", err)
			}
		}
	}
}

// sayPool says what serves the program's memory.
func (p *Plan) sayPool(leases []*share.Lease, status []device.Status) {
	q := p.Limits.Pool
	if q == nil {
		return
	}
	var on []string
	for i, l := range leases {
		text := fmt.Sprintf("%s on GPU %d", size.Format(l.Bytes()), status[i].Ordinal)
		if l.Within() > 0 {
			text += ", with the lease that it is a part of"
		}
		on = append(on, text)
	}
	copies := ""
	if p.Copies > 1 {
		copies = fmt.Sprintf(" for each of %d copies", p.Copies)
	}
	p.say("pool %s for %s%s: %s serves its memory, in front of %s", q.Name, strings.Join(on, " and "), copies, q.Folder, q.Driver)
	if len(on) > 1 {
		const text = "memory that the pool serves cannot be shared with other processes by CUDA IPC, as some multi-GPU programs do"
		p.say(text + "; --pool off has the driver's own")
	}
}
