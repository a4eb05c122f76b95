package main

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/internal/report"
	"gpumem/node/machine"
	"gpumem/node/probe"
	"gpumem/size"
)

func devicesCommand() *cobra.Command {
	var specs []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List GPUs, real and simulated, and their processes",
		Args:  noWords("devices"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, driver, err := probe.Devices(specs)
			if err != nil {
				return err
			}
			if len(list) == 0 && driver != nil && driver.Why != "" {
				writeNotes(cmd.ErrOrStderr(), []string{driver.Why})
			}
			return show(cmd, asJSON, jsonOfDevices(list, driver), func(t *text) { writeDevices(t, list) })
		},
	}
	cmd.Flags().StringArrayVar(&specs, "device", nil, "only this `DEVICE`: cuda:N, sim@FILE[,device=N] or sim:SIZE; repeat for several")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// deviceJSON is a device in the JSON. The names of a state file (index, name,
// total_bytes, used_bytes, display_active, processes) mean the same here.
type deviceJSON struct {
	Index       int           `json:"index"` // of the device among its kind: N of cuda:N
	Device      string        `json:"device"`
	Name        string        `json:"name"`
	UUID        string        `json:"uuid,omitempty"`
	Simulated   bool          `json:"simulated"`
	Driver      string        `json:"driver,omitempty"`
	Total       uint64        `json:"total_bytes"`
	Free        uint64        `json:"free_bytes"`
	Used        uint64        `json:"used_bytes"`
	Reserved    uint64        `json:"reserved_bytes"`
	Granularity uint64        `json:"granularity_bytes"`
	Page        uint64        `json:"page_bytes"`
	Capability  string        `json:"compute_capability"`
	Display     bool          `json:"display_active"`
	DisplayMode bool          `json:"display_mode"`
	MIG         string        `json:"mig,omitempty"`
	Unified     bool          `json:"unified"`
	HasPages    bool          `json:"virtual_memory"`
	HasPools    bool          `json:"pools"`
	HasManaged  bool          `json:"managed_memory"` // grants that move between the GPU and the host
	Exceeds     bool          `json:"oversubscribes"` // such grants may exceed the GPU
	Processes   []processJSON `json:"processes"`
	Notes       []string      `json:"notes,omitempty"`
}

type processJSON struct {
	PID  int     `json:"pid"`
	Name string  `json:"name"`
	Kind string  `json:"kind"`
	Used *uint64 `json:"used_bytes"` // null if the driver does not report it
}

// devicesJSON is the command's JSON.
type devicesJSON struct {
	Devices []deviceJSON    `json:"devices"`
	Driver  *machine.Driver `json:"driver,omitempty"`
}

func jsonOfDevices(list []open.Listed, driver *machine.Driver) devicesJSON {
	out := devicesJSON{[]deviceJSON{}, driver}
	for _, d := range list {
		j := deviceJSON{
			Index: d.Ordinal, Device: d.Words, Name: d.Name, UUID: d.UUID, Simulated: d.Simulated, Driver: d.Driver,
			Total: d.Total, Free: d.Free, Used: d.Used, Reserved: d.Reserved, Granularity: d.Granularity, Page: d.Page,
			Capability: capability(d), Display: d.Display, DisplayMode: d.DisplayMode, MIG: d.MIG, Unified: d.Unified,
			HasPages: d.HasPages, HasPools: d.HasPools, HasManaged: d.HasManaged, Exceeds: d.Oversubscribes, Processes: []processJSON{}, Notes: d.Notes,
		}
		for _, p := range d.Processes {
			pj := processJSON{PID: p.PID, Name: p.Name, Kind: p.Kind}
			if p.Known {
				pj.Used = &p.Used
			}
			j.Processes = append(j.Processes, pj)
		}
		out.Devices = append(out.Devices, j)
	}
	return out
}

func capability(d open.Listed) string { return fmt.Sprintf("%d.%d", d.CCMajor, d.CCMinor) }

// writeDevices writes a table of the devices, one of the programs on them, and notes.
func writeDevices(t *text, list []open.Listed) {
	if len(list) == 0 {
		t.Line("no devices")
		return
	}
	devices := report.NewTable("device", "name", ">total", ">free", ">used", ">grants of", "driver", "cc", "display", "MIG")
	programs := report.NewTable("device", ">pid", "program", "kind", ">holds")
	anyone := false
	var notes []string
	for _, d := range list {
		driver := d.Driver
		if d.Simulated {
			driver = "simulated"
		}
		devices.Row(d.Words, d.Name, size.Format(d.Total), size.Format(d.Free), size.Format(d.Used),
			size.Format(d.Granularity), orDash(driver), capability(d), display(d), orDash(d.MIG))
		for _, p := range d.Processes {
			anyone = true
			holds := "unknown"
			if p.Known {
				holds = size.Format(p.Used)
			}
			programs.Row(d.Words, strconv.Itoa(p.PID), orDash(p.Name), p.Kind, holds)
		}
		for _, n := range traits(d) {
			notes = append(notes, d.Words+": "+n)
		}
	}
	t.table(devices)
	t.section("")
	if anyone {
		t.table(programs)
	} else {
		t.Line("no program holds memory")
	}
	t.section("")
	for _, n := range notes {
		t.fact("%s", n)
	}
}

func orDash(s string) string { return cmp.Or(s, "-") }

func display(d open.Listed) string {
	switch {
	case d.Display && d.DisplayMode:
		return "on, monitor"
	case d.Display:
		return "on"
	}
	return "off"
}

// traits returns what is out of the ordinary about a device.
func traits(d open.Listed) []string {
	var out []string
	if d.Reserved > 0 {
		out = append(out, "the driver reserves "+size.Format(d.Reserved))
	}
	if d.Unified {
		out = append(out, "its memory is the host's, which programs on the host use, too")
	}
	if !d.HasPages {
		out = append(out, "no virtual memory calls: policies that map pages do not work here")
	}
	if !d.HasPools {
		out = append(out, "no stream-ordered pools: the async policy does not work here")
	}
	return append(out, d.Notes...)
}
