// Package machine holds the state of a machine's GPUs as values: devices, the programs
// on them, their leases, and the programs that wait for one. [Snapshot] in JSON is a
// state file: gpumem ps --json writes it and gpumem doctor --state reads it.
//
// Package node/probe fills the values; this one reads nothing but state files. Sizes
// are in bytes. What is unknown is nil or empty, and absent in the JSON.
package machine

import (
	"fmt"
	"slices"
	"time"

	"gpumem/size"
)

// Snapshot is the state of a machine at one moment.
type Snapshot struct {
	Time    time.Time `json:"-"`
	Devices []Device  `json:"devices"`
	Driver  *Driver   `json:"driver,omitempty"` // nil if unknown or not needed
	// Process is the program that failed, in a snapshot for doctor.
	Process *Process `json:"process,omitempty"`
	// Tried lists settings that were tried, in a snapshot for doctor.
	Tried []attempt `json:"tried,omitempty"`
	Notes []string  `json:"-"` // readings that failed, with the reason
}

// Driver is the state of the GPUs' driver.
type Driver struct {
	Up  bool   `json:"up"`
	Why string `json:"why,omitempty"` // the reason why it is not up
}

// Device is a GPU and the programs that use it.
type Device struct {
	Index     int     `json:"index"`  // among the devices of its kind: N of cuda:N
	Spec      string  `json:"device"` // as --device takes it
	Name      string  `json:"name"`
	UUID      string  `json:"uuid,omitempty"`
	Simulated bool    `json:"simulated"`
	Total     uint64  `json:"total_bytes"`
	Free      *uint64 `json:"free_bytes,omitempty"`
	Used      *uint64 `json:"used_bytes,omitempty"`
	Leased    uint64  `json:"leased_bytes"` // at most by all leases, used or not
	Display   bool    `json:"display_active"`
	// Programs hold memory or a lease, the largest first; nil if unknown, empty if
	// there are none.
	Programs []Program `json:"processes,omitzero"`
	Waiting  []Waiting `json:"waiting"` // the next first
	Notes    []string  `json:"notes,omitempty"`
}

// Program is a process that holds memory of a device, or a lease on it.
type Program struct {
	PID  int     `json:"pid,omitempty"`
	Name string  `json:"name,omitempty"`
	Kind string  `json:"kind,omitempty"` // compute, graphics or both; empty if unknown or without memory
	Used *uint64 `json:"used_bytes,omitempty"`
	// Frameworks are loaded, in the words of frameworks.Release, and Releases are
	// theirs, each empty if unknown. Frameworks is nil if unknown, empty if none is.
	Frameworks []string   `json:"frameworks,omitzero"`
	Releases   []string   `json:"releases,omitempty"`
	ParentGone *bool      `json:"parent_gone,omitempty"` // the process that started it has ended
	Parent     *int       `json:"parent,omitempty"`
	User       string     `json:"user,omitempty"`
	Command    []string   `json:"command,omitempty"`
	Container  string     `json:"container,omitempty"`
	Started    *time.Time `json:"started,omitempty"` // nil if the process itself is unknown
	Start      uint64     `json:"-"`                 // with PID it identifies the process; 0 if unknown
	// Pool is what its pool has, of a program whose memory the driver library serves;
	// nil if it is another, or unknown.
	Pool *PoolUse `json:"pool,omitempty"`
	// Turn is where its memory is, of a program that shares the device by turns; else nil.
	Turn   *Turn      `json:"turn,omitempty"`
	*Lease            // nil if it has none; shared by all programs under it
	Pod    *Container `json:"pod,omitempty"`           // of its lease's containers the one that it is in; nil if it is in none, or unknown
	LeftBy int        `json:"lease_left_by,omitempty"` // the process that had the lease and has ended
	// Beside is what it took past its lease's pool; nil if nothing is known of it.
	Beside  *Beside `json:"beside,omitempty"`
	Hooked  *bool   `json:"hooked,omitempty"` // of a program with a lease: its environment has the Python hook
	Asks    *Asks   `json:"asks,omitempty"`
	Unknown string  `json:"not_told,omitempty"` // why the process itself is unknown
}

// Lease is all that one process has leased of a device.
type Lease struct {
	Bytes    uint64 `json:"lease_bytes"`
	Programs int    `json:"lease_programs,omitempty"` // that use the device under it
	Holder   int    `json:"-"`                        // the process that has it, 0 if unknown
	InUse    uint64 `json:"-"`                        // by its programs, as far as known
	// Sum is what the pools of all its processes have, if the driver library serves
	// them; of the peaks the sum of each one's. Nil if it does not, or if that is unknown.
	Sum *PoolUse `json:"lease_pool,omitempty"`
	// Of a lease that is for containers of a Kubernetes node: its id in the registry, the
	// containers, and how many more there are.
	ID             string      `json:"lease_id,omitempty"`
	Containers     []Container `json:"lease_containers,omitempty"`
	MoreContainers int         `json:"lease_more_containers,omitempty"`
}

// Container is one that a lease is for.
type Container struct {
	ID        string `json:"id,omitempty"` // the runtime's
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Name      string `json:"name,omitempty"`
}

// PoolUse describes the memory of a process, or of several, that the driver library
// serves from a pool. Bytes unless noted.
type PoolUse struct {
	Held        uint64 `json:"held_bytes"`   // by the pool, from the driver
	InUse       uint64 `json:"in_use_bytes"` // of it by the program
	PeakHeld    uint64 `json:"held_peak_bytes"`
	PeakInUse   uint64 `json:"in_use_peak_bytes"`
	Charged     uint64 `json:"charged_bytes"` // taken by the program from the driver itself
	Outside     uint64 `json:"outside_bytes"` // by its context and its libraries
	Refused     uint64 `json:"refused"`       // number of requests
	DriverCalls uint64 `json:"driver_calls"`  // number
}

// Turn says where the memory of a process is that shares a GPU by turns, and what it waits for.
type Turn struct {
	// State is in, leaving, away, waiting or returning, see ledger.State; unknown if its record
	// is damaged, and then so is all else.
	State   string    `json:"state"`
	Since   time.Time `json:"since,omitzero"` // the state began
	OnHost  uint64    `json:"on_host_bytes"`  // of its blocks
	Movable uint64    `json:"movable_bytes"`  // that would be free if it left
	Paused  bool      `json:"paused"`         // by hand, see gpumem pause
	// NotAsked is the reason why it is not asked to leave, half a sentence; empty if it may be.
	NotAsked string `json:"not_asked,omitempty"`

	Place   *int         `json:"place,omitempty"`        // in the queue; 0 is next, nil if it does not wait
	Wants   uint64       `json:"wants_bytes,omitempty"`  // that it waits for
	Never   bool         `json:"never_served,omitempty"` // also when the turns of all others are over
	HeldBy  []TurnHolder `json:"held_by,omitempty"`      // what it lacks, the most first, if nobody makes room for it now
	Swaps   uint64       `json:"swaps"`                  // number of times that it has left
	Seconds float64      `json:"last_swap_seconds"`      // that the last way out and back took
}

// TurnHolder is a process that holds memory which another waits for, and cannot be asked for it
// now.
type TurnHolder struct {
	PID   int    `json:"pid,omitempty"` // 0 if it cannot be seen from here
	Bytes uint64 `json:"bytes"`
	Why   string `json:"why"` // half a sentence
}

// Beside describes GPU memory of a process in a lease with a pool that the pool library does
// not count.
type Beside struct {
	Bytes   *uint64  `json:"bytes,omitempty"`   // nil if unknown
	Outside uint64   `json:"outside_bytes"`     // of Bytes, as estimated, by its context and its libraries
	Drivers []string `json:"drivers,omitempty"` // driver libraries that it has loaded past the pool library
	How     string   `json:"how"`
}

// String returns a clause without a subject, such as "took 128 MiB beside its lease: ...".
func (b *Beside) String() string {
	if b.Bytes == nil {
		return "may have taken memory beside its lease, how much is unknown: " + b.How
	}
	text := fmt.Sprintf("took %s beside its lease", size.Format(*b.Bytes))
	if b.Outside > 0 {
		text += fmt.Sprintf(" (about %s of it by its context and its libraries)", size.Format(b.Outside))
	}
	return text + ": " + b.How
}

// Asks is what a program's environment asks for, as its framework reads it.
type Asks struct {
	Framework string  `json:"framework"`
	Version   string  `json:"version"`
	Summary   string  `json:"summary"`
	Brief     string  `json:"-"` // the summary in a few words
	Allocator string  `json:"allocator"`
	First     uint64  `json:"taken_at_first_operation_bytes"`
	Limit     *uint64 `json:"limit_bytes"`
	Warnings  int     `json:"warnings"`
	Errors    int     `json:"errors"`
}

// Waiting is a program that waits for a lease.
type Waiting struct {
	Place     int       `json:"place"`  // in the queue; 0 is next
	Stopped   bool      `json:"asleep"` // it is passed over meanwhile
	PID       int       `json:"pid"`    // 0 if unknown
	Elsewhere bool      `json:"-"`      // PID is of another pid namespace
	User      string    `json:"user"`
	Wants     uint64    `json:"wants_bytes"` // 0 is all that can be shared
	Since     time.Time `json:"since"`
	Command   []string  `json:"command"`
}

// Process is one process, with its settings.
type Process struct {
	PID        int               `json:"pid,omitempty"`
	Frameworks []string          `json:"frameworks,omitempty"`
	Versions   map[string]string `json:"versions,omitempty"` // of the frameworks
	Env        map[string]string `json:"env,omitempty"`
	// Fraction is what torch.cuda.set_per_process_memory_fraction was given.
	Fraction         *float64 `json:"per_process_memory_fraction,omitempty"`
	BackendRecreated *bool    `json:"backend_recreated,omitempty"` // JAX made its client again
}

// attempt is a setting that was tried.
type attempt struct {
	Env    map[string]string `json:"env"`
	Helped bool              `json:"helped"`
}

// InUse returns the bytes in use on the device, 0 if unknown.
func (d *Device) InUse() uint64 { return orZero(d.Used) }

// Holds returns the bytes that the program holds, 0 if unknown.
func (p *Program) Holds() uint64 { return orZero(p.Used) }

func orZero(p *uint64) uint64 {
	if p == nil {
		return 0
	}
	return *p
}

// Device returns the GPU with this index, or the only one if index is below zero. It is
// nil if the snapshot is nil or has no such device.
func (s *Snapshot) Device(index int) *Device {
	if s == nil {
		return nil
	}
	if index < 0 && len(s.Devices) == 1 {
		return &s.Devices[0]
	}
	if i := slices.IndexFunc(s.Devices, func(d Device) bool { return d.Index == max(index, 0) }); i >= 0 {
		return &s.Devices[i]
	}
	return nil
}
