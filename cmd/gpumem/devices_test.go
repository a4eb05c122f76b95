package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/node/machine"
	"gpumem/node/probe"
	"gpumem/node/share"
)

// listed are devices as a driver could show them, which no test machine has all.
var listed = []open.Listed{
	{Words: "cuda:0", Status: device.Status{
		Info: device.Info{
			Name: "NVIDIA H200", UUID: "GPU-1", Driver: "580.82.07", Total: 143156 << 20, Granularity: 512, Page: 2 << 20,
			CCMajor: 9, HasPages: true, HasPools: true,
		},
		Free: 40000 << 20, Used: 103156 << 20, Reserved: 615 << 20,
		Processes: []device.Process{
			{PID: 101, Name: "python3", Kind: "compute", Used: 100 << 30, Known: true},
			{PID: 2345678, Kind: "graphics"},
		},
	}},
	{Words: "cuda:1", Status: device.Status{
		Info: device.Info{
			Name: "NVIDIA A100 MIG 1g.5gb", Ordinal: 1, Driver: "580.82.07", Total: 4864 << 20, Granularity: 512,
			CCMajor: 8, MIG: "1g.5gb", Display: true, Unified: true,
		},
		Free: 4864 << 20, DisplayMode: true, Notes: []string{"NVML: no permission"},
	}},
}

func TestDevicesTable(t *testing.T) {
	var b bytes.Buffer
	if err := printText(&b, func(t *text) { writeDevices(t, listed) }); err != nil {
		t.Fatal(err)
	}
	const want = `device  name                         total       free        used  grants of  driver     cc   display      MIG
cuda:0  NVIDIA H200             139.80 GiB  39.06 GiB  100.74 GiB      512 B  580.82.07  9.0  off          -
cuda:1  NVIDIA A100 MIG 1g.5gb    4.75 GiB   4.75 GiB         0 B      512 B  580.82.07  8.0  on, monitor  1g.5gb

device      pid  program  kind        holds
cuda:0      101  python3  compute   100 GiB
cuda:0  2345678  -        graphics  unknown

cuda:0: the driver reserves 615 MiB
cuda:1: its memory is the host's, which programs on the host use, too
cuda:1: no virtual memory calls: policies that map pages do not work here
cuda:1: no stream-ordered pools: the async policy does not work here
cuda:1: NVML: no permission
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestDevicesJSON(t *testing.T) {
	var b bytes.Buffer
	if err := encode(&b, probe.NewListing(listed[:1], &machine.Driver{Up: true})); err != nil {
		t.Fatal(err)
	}
	const want = `{
  "devices": [
    {
      "index": 0,
      "device": "cuda:0",
      "name": "NVIDIA H200",
      "uuid": "GPU-1",
      "simulated": false,
      "driver": "580.82.07",
      "total_bytes": 150109945856,
      "free_bytes": 41943040000,
      "used_bytes": 108166905856,
      "reserved_bytes": 644874240,
      "granularity_bytes": 512,
      "page_bytes": 2097152,
      "compute_capability": "9.0",
      "display_active": false,
      "display_mode": false,
      "unified": false,
      "virtual_memory": true,
      "pools": true,
      "managed_memory": false,
      "oversubscribes": false,
      "processes": [
        {
          "pid": 101,
          "name": "python3",
          "kind": "compute",
          "used_bytes": 107374182400
        },
        {
          "pid": 2345678,
          "name": "",
          "kind": "graphics",
          "used_bytes": null
        }
      ]
    }
  ],
  "driver": {
    "up": true
  }
}
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// TestNoDriverInventsNoDevice: no driver and no named device are no device, in text
// and JSON, and the state says that the driver is down.
func TestNoDriverInventsNoDevice(t *testing.T) {
	t.Setenv(open.EnvVar, "")
	t.Setenv(share.EnvDir, t.TempDir())
	if _, driver, err := probe.Devices(nil); err != nil || driver.Up {
		t.Skip("NOT TESTED: a driver is here")
	}
	for _, args := range [][]string{{"devices"}, {"ps"}, {"top", "--once"}} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, &out, &errs); code != 0 || !strings.Contains(out.String(), "no devices\n") || strings.Contains(out.String(), "sim:") || !strings.Contains(errs.String(), "no usable NVIDIA driver") {
			t.Errorf("%v: status %d, %q, stderr %q", args, code, &out, &errs)
		}
		out.Reset()
		var got struct {
			Devices []any
			Driver  struct {
				Up  *bool
				Why string
			}
		}
		if code := run(t.Context(), append(args[:1:1], "--json"), &out, &errs); code != 0 {
			t.Errorf("%v --json: status %d", args, code)
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Devices == nil || len(got.Devices) > 0 || got.Driver.Up == nil || *got.Driver.Up || got.Driver.Why == "" {
			t.Errorf("%v --json: %v, %s", args, err, &out)
		}
	}
	// One that is named is there, and is simulated.
	t.Setenv(open.EnvVar, "sim:24GiB")
	for _, command := range []string{"devices", "ps"} {
		var out, errs bytes.Buffer
		run(t.Context(), []string{command, "--json"}, &out, &errs)
		if !strings.Contains(out.String(), `"simulated": true`) || !strings.Contains(out.String(), `"up": false`) {
			t.Errorf("%s: %s", command, &out)
		}
	}
}

func TestNoDevices(t *testing.T) {
	var b bytes.Buffer
	if err := printText(&b, func(t *text) { writeDevices(t, nil) }); err != nil || b.String() != "no devices\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	if err := printText(failing{}, func(t *text) { writeDevices(t, listed) }); err == nil {
		t.Error("an output that is full is no error")
	}
}
