// gpumem devices: its flags, and the devices as text.

package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/internal/report"
	"gpumem/node/probe"
	"gpumem/size"
)

type devicesOptions struct {
	call
	devices []string
}

func devicesCommand() *cobra.Command {
	var o devicesOptions
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List GPUs, real and simulated, and their processes",
		Args:  noWords,
		RunE:  runner(&o, runDevices),
	}
	const usage = "only this `DEVICE`: cuda:N, sim@FILE[,device=N] or sim:SIZE; repeat for several"
	cmd.Flags().StringArrayVar(&o.devices, "device", nil, usage)
	o.addJSON(cmd)
	return cmd
}

func runDevices(_ context.Context, o *devicesOptions) error {
	list, driver, err := probe.Devices(o.devices)
	if err != nil {
		return err
	}
	if len(list) == 0 && driver != nil && driver.Why != "" {
		o.note(driver.Why)
	}
	return o.show(probe.NewListing(list, driver), func(t *text) { writeDevices(t, list) })
}

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
			size.Format(d.Granularity), orDash(driver), fmt.Sprintf("%d.%d", d.CCMajor, d.CCMinor), display(d), orDash(d.MIG))

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

	t.Table(devices)

	t.section("")
	if anyone {
		t.Table(programs)
	} else {
		t.Line("no program holds memory")
	}

	t.section("")
	for _, n := range notes {
		t.Fact("%s", n)
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
