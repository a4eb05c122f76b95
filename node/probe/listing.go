// Devices as JSON.

package probe

import (
	"fmt"

	"gpumem/device/open"
	"gpumem/node/machine"
)

// Listing is the JSON of gpumem devices.
type Listing struct {
	Devices []listedDevice  `json:"devices"`
	Driver  *machine.Driver `json:"driver,omitempty"`
}

// listedDevice is a device in the JSON. The names of a state file (index, name,
// total_bytes, used_bytes, display_active, processes) mean the same here.
type listedDevice struct {
	Index       int             `json:"index"` // of the device among its kind: N of cuda:N
	Device      string          `json:"device"`
	Name        string          `json:"name"`
	UUID        string          `json:"uuid,omitempty"`
	Simulated   bool            `json:"simulated"`
	Driver      string          `json:"driver,omitempty"`
	Total       uint64          `json:"total_bytes"`
	Free        uint64          `json:"free_bytes"`
	Used        uint64          `json:"used_bytes"`
	Reserved    uint64          `json:"reserved_bytes"`
	Granularity uint64          `json:"granularity_bytes"`
	Page        uint64          `json:"page_bytes"`
	Capability  string          `json:"compute_capability"`
	Display     bool            `json:"display_active"`
	DisplayMode bool            `json:"display_mode"`
	MIG         string          `json:"mig,omitempty"`
	Unified     bool            `json:"unified"`
	HasPages    bool            `json:"virtual_memory"`
	HasPools    bool            `json:"pools"`
	HasManaged  bool            `json:"managed_memory"` // grants that move between the GPU and the host
	Exceeds     bool            `json:"oversubscribes"` // such grants may exceed the GPU
	Processes   []listedProcess `json:"processes"`
	Notes       []string        `json:"notes,omitempty"`
}

type listedProcess struct {
	PID  int     `json:"pid"`
	Name string  `json:"name"`
	Kind string  `json:"kind"`
	Used *uint64 `json:"used_bytes"` // null if the driver does not report it
}

// NewListing returns what [Devices] has returned as JSON.
func NewListing(list []open.Listed, driver *machine.Driver) Listing {
	out := Listing{[]listedDevice{}, driver}
	for _, d := range list {
		j := listedDevice{
			Index: d.Ordinal, Device: d.Words, Name: d.Name, UUID: d.UUID, Simulated: d.Simulated, Driver: d.Driver,
			Total: d.Total, Free: d.Free, Used: d.Used, Reserved: d.Reserved, Granularity: d.Granularity, Page: d.Page,
			Capability: fmt.Sprintf("%d.%d", d.CCMajor, d.CCMinor), Display: d.Display, DisplayMode: d.DisplayMode, MIG: d.MIG,
			Unified: d.Unified, HasPages: d.HasPages, HasPools: d.HasPools, HasManaged: d.HasManaged, Exceeds: d.Oversubscribes,
			Processes: []listedProcess{}, Notes: d.Notes,
		}
		for _, p := range d.Processes {
			pj := listedProcess{PID: p.PID, Name: p.Name, Kind: p.Kind}
			if p.Known {
				pj.Used = &p.Used
			}
			j.Processes = append(j.Processes, pj)
		}
		out.Devices = append(out.Devices, j)
	}
	return out
}
