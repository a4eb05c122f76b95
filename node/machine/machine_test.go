package machine_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/internal/test/machinetest"
	"gpumem/node/machine"
)

// TestSnapshotJSON: the names of a state file, and what is unknown is absent.
func TestSnapshotJSON(t *testing.T) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(machinetest.Example()); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Devices []struct {
			Index     int
			Name      string
			Total     uint64 `json:"total_bytes"`
			Used      uint64 `json:"used_bytes"`
			Display   bool   `json:"display_active"`
			Processes []map[string]any
			Waiting   []map[string]any
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	d := got.Devices[0]
	if len(got.Devices) != 2 || d.Index != 0 || d.Name != "NVIDIA H200" || d.Total != 143156<<20 || d.Used != 103156<<20 || d.Display || !got.Devices[1].Display {
		t.Errorf("%+v", got)
	}
	for i, p := range []string{
		`{"pid":11,"name":"python3","kind":"compute","used_bytes":21474836480,"frameworks":["jax"],"releases":["0.4.30"],"parent_gone":false,"parent":1,"user":"ann",
			"command":["/usr/bin/python3","train.py"],"started":"2026-09-20T10:00:00Z","lease_bytes":23622320128,"lease_programs":1,
			"asks":{"framework":"jax","version":"0.4.30","summary":"Takes 20 GiB of the 80 GiB at the first operation, and keeps it.","allocator":"bfc",
			"taken_at_first_operation_bytes":21474836480,"limit_bytes":21474836480,"warnings":1,"errors":0}}`,
		`{"pid":12,"name":"python3","kind":"compute","used_bytes":1073741824,"parent_gone":true,"parent":1,"user":"ann","command":["ray::f\u001b[31m"],"container":"0123456789ab","started":"2026-09-21T10:55:00Z"}`,
		`{"pid":13,"name":"Xorg","kind":"graphics","not_told":"process 13: there is no such process"}`,
		`{"pid":14,"name":"python3","frameworks":[],"parent_gone":false,"parent":1,"user":"ann","started":"2026-09-21T11:59:57Z","lease_bytes":4294967296}`,
		`{"user":"3999999999","command":["python3","x.py"],"lease_bytes":4294967296,"not_told":"its process cannot be seen from here"}`,
	} {
		var want map[string]any
		if err := json.Unmarshal([]byte(p), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, d.Processes[i]); diff != "" {
			t.Errorf("%d: %s", i, diff)
		}
	}
	if w := d.Waiting; len(w) != 2 || w[0]["pid"] != 15.0 || w[0]["wants_bytes"] != float64(30<<30) || w[1]["place"] != 1.0 {
		t.Errorf("%v", w)
	}
}

// TestPoolJSON: the pool of a program and what those of its lease have together.
func TestPoolJSON(t *testing.T) {
	p := machine.Program{PID: 11,
		Pool:  &machine.PoolUse{Held: 1, InUse: 2, PeakHeld: 3, PeakInUse: 4, Charged: 5, Outside: 6, Refused: 7, DriverCalls: 8},
		Lease: &machine.Lease{Bytes: 9, Sum: &machine.PoolUse{Held: 10}},
	}
	got, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"pid":11,"pool":{"held_bytes":1,"in_use_bytes":2,"held_peak_bytes":3,"in_use_peak_bytes":4,"charged_bytes":5,"outside_bytes":6,"refused":7,"driver_calls":8},` +
		`"lease_bytes":9,"lease_pool":{"held_bytes":10,"in_use_bytes":0,"held_peak_bytes":0,"in_use_peak_bytes":0,"charged_bytes":0,"outside_bytes":0,"refused":0,"driver_calls":0}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

// TestTurnJSON: the names of a turn's fields, which scripts read, and that a state file with one is read as it was written.
func TestTurnJSON(t *testing.T) {
	turn := &machine.Turn{State: "waiting", Since: machinetest.Now, OnHost: 9, Movable: 1, Paused: true, NotAsked: "why", Place: new(0), Wants: 10, Never: true,
		HeldBy: []machine.TurnHolder{{PID: 11, Bytes: 16, Why: "its turn is not over"}, {Bytes: 1, Why: "x"}}, Swaps: 3, Seconds: 1.5}
	const want = `{"state":"waiting","since":"2026-09-21T12:00:00Z","on_host_bytes":9,"movable_bytes":1,"paused":true,"not_asked":"why","place":0,"wants_bytes":10,` +
		`"never_served":true,"held_by":[{"pid":11,"bytes":16,"why":"its turn is not over"},{"bytes":1,"why":"x"}],"swaps":3,"last_swap_seconds":1.5}`
	text, err := json.Marshal(turn)
	if err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
	written := machine.Snapshot{Devices: []machine.Device{{Programs: []machine.Program{{PID: 1, Turn: turn}, {PID: 2, Turn: &machine.Turn{State: "in"}}, {PID: 3}}}}}
	if text, err = json.Marshal(written); err != nil || bytes.Count(text, []byte(`"turn"`)) != 2 {
		t.Errorf("%s, %v", text, err)
	}
	read, err := machine.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range written.Devices[0].Programs {
		if diff := cmp.Diff(p.Turn, read.Devices[0].Programs[i].Turn); diff != "" {
			t.Error(diff)
		}
	}
}
