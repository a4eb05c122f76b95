package main

import (
	"io"
	"time"

	"gpumem/internal/proc"
)

// The JSON of ps, which is a state file: index, name, total_bytes, used_bytes,
// display_active and processes with pid, name, used_bytes, frameworks and
// parent_gone are its own fields. What is not told is absent.

type psDeviceJSON struct {
	Index     int             `json:"index"`
	Device    string          `json:"device"`
	Name      string          `json:"name"`
	UUID      string          `json:"uuid,omitempty"`
	Simulated bool            `json:"simulated"`
	Total     uint64          `json:"total_bytes"`
	Free      *uint64         `json:"free_bytes,omitempty"`
	Used      *uint64         `json:"used_bytes,omitempty"`
	Leased    uint64          `json:"leased_bytes"`
	Display   bool            `json:"display_active"`
	Processes []psProgramJSON `json:"processes,omitzero"` // nil: not told; empty: none
	Waiting   []psWaitingJSON `json:"waiting"`
	Notes     []string        `json:"notes,omitempty"`
}

type psProgramJSON struct {
	PID        int         `json:"pid,omitempty"`
	Name       string      `json:"name,omitempty"`
	Kind       string      `json:"kind,omitempty"`
	Used       *uint64     `json:"used_bytes,omitempty"`
	Frameworks *[]string   `json:"frameworks,omitempty"`
	Releases   []string    `json:"releases,omitempty"` // of the frameworks; empty: not known
	ParentGone *bool       `json:"parent_gone,omitempty"`
	Parent     *int        `json:"parent,omitempty"`
	User       string      `json:"user,omitempty"`
	Command    []string    `json:"command,omitempty"`
	Container  string      `json:"container,omitempty"`
	Started    *time.Time  `json:"started,omitempty"`
	Lease      *uint64     `json:"lease_bytes,omitempty"`
	Programs   int         `json:"lease_programs,omitempty"` // that use the device under this lease
	LeftBy     int         `json:"lease_left_by,omitempty"`  // the process that had the lease and has ended
	Hooked     *bool       `json:"hooked,omitempty"`         // of a program of a lease: its environment has the Python hook
	Asks       *psAsksJSON `json:"asks,omitempty"`
	NotTold    string      `json:"not_told,omitempty"` // why
}

type psAsksJSON struct {
	Framework string  `json:"framework"`
	Version   string  `json:"version"`
	Summary   string  `json:"summary"`
	Allocator string  `json:"allocator"`
	First     uint64  `json:"taken_at_first_operation_bytes"`
	Limit     *uint64 `json:"limit_bytes"`
	Warnings  int     `json:"warnings"`
	Errors    int     `json:"errors"`
}

type psWaitingJSON struct {
	Place   int       `json:"place"` // 0 is next
	Asleep  bool      `json:"asleep"`
	PID     int       `json:"pid"`
	User    string    `json:"user"`
	Wants   uint64    `json:"wants_bytes"` // 0: all that can be had
	Since   time.Time `json:"since"`
	Command []string  `json:"command"`
}

func writePsJSON(w io.Writer, s *psState) error {
	out := []psDeviceJSON{}
	for _, d := range s.devices {
		j := psDeviceJSON{
			Index: d.Ordinal, Device: d.Words, Name: d.Name, UUID: d.UUID, Simulated: d.Simulated, Total: d.Total, Leased: d.leased,
			Display: d.Display, Waiting: []psWaitingJSON{}, Notes: d.Notes,
		}
		if d.Free > 0 || d.Used > 0 {
			j.Free, j.Used = &d.Free, &d.Used
		}
		// Without a list, a note says why there is none.
		if len(d.programs) > 0 || len(d.Notes) == 0 {
			j.Processes = []psProgramJSON{}
		}
		for _, p := range d.programs {
			j.Processes = append(j.Processes, p.json())
		}
		for _, l := range d.waiting {
			j.Waiting = append(j.Waiting, psWaitingJSON{l.Place, l.Stopped, l.PID, proc.UserName(l.UID), l.Bytes, l.Since, l.Command})
		}
		out = append(out, j)
	}
	return encodeDevices(w, out, s.driver)
}

// leaseUser names the owner of a lease's files; "" if it is unknown.
func leaseUser(l *psLease) string {
	if l.UID < 0 {
		return ""
	}
	return proc.UserName(l.UID)
}

func (p psProgram) json() psProgramJSON {
	j := psProgramJSON{PID: p.PID, Name: p.Name, Kind: p.Kind, NotTold: p.why}
	if p.Known {
		j.Used = &p.Used
	}
	if p.lease != nil {
		j.Lease, j.Command, j.Programs = &p.lease.Bytes, p.lease.Command, p.lease.programs
		j.User = leaseUser(p.lease)
	}
	j.Hooked = p.hooked
	if p.left != nil {
		j.LeftBy = p.left.PID
	}
	if i := p.info; i != nil {
		j.ParentGone, j.Parent, j.User, j.Command, j.Container, j.Started = &i.ParentGone, &i.Parent, i.User, i.Command, i.Container, &i.Started
		if j.Name == "" {
			j.Name = i.Name
		}
		if !p.opaque {
			names := []string{}
			for _, f := range p.loaded {
				names, j.Releases = append(names, f.Name), append(j.Releases, f.Version)
			}
			j.Frameworks = &names
		}
	}
	if a := p.asks; a != nil {
		j.Asks = &psAsksJSON{a.Framework, a.Version, a.Summary(), a.Allocator, a.First, a.Limit, len(a.Warnings), len(a.Errors)}
	}
	return j
}
