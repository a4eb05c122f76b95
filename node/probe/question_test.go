package probe

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/device"
	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// TestChooseLoaded: which of the frameworks that a process has loaded is
// explained, and what is said of the others.
func TestChooseLoaded(t *testing.T) {
	jax, old, bare := proc.Framework{Name: "jax", Version: "0.4.30"}, proc.Framework{Name: "jax", Version: "0.0.1"}, proc.Framework{Name: "jax"}
	own := proc.Framework{Name: "gpumem"} // the one other name that takes part in every version
	strange := proc.Framework{Name: "mxnet", Version: "1.9.1"}
	for _, tc := range []struct {
		name   string
		loaded []proc.Framework
		as     string // "": not given
		want   string
		notes  []string
	}{
		{"none", nil, "", "jax", []string{"process 7 has loaded no framework known here: explained as jax; --as names another"}},
		{"one", []proc.Framework{jax}, "", "jax@0.4.30", nil},
		{"several", []proc.Framework{jax, own}, "", "jax@0.4.30", []string{"process 7 has also loaded gpumem; --as names the one to explain"}},
		{"not explained", []proc.Framework{strange, jax}, "", "jax@0.4.30", []string{"process 7 has loaded mxnet@1.9.1, which this version does not explain"}},
		{"only such", []proc.Framework{strange}, "", "jax", []string{
			"process 7 has loaded mxnet@1.9.1, which this version does not explain",
			"process 7 has loaded no framework known here: explained as jax; --as names another",
		}},
		{"no release", []proc.Framework{bare}, "", "jax", []string{"process 7: the release of jax is unknown: the newest is explained; --as jax@VERSION names it"}},
		{"no such release", []proc.Framework{old}, "", "jax", []string{"process 7: JAX 0.0.1 is not known; the oldest known release is 0.1.16; the newest is explained"}},
		{"named", []proc.Framework{strange, jax, own}, "jax", "jax@0.4.30", nil},
		{"named with a release", []proc.Framework{jax}, "jax@0.5.0", "jax@0.5.0", nil},
		{"named, and not loaded", []proc.Framework{jax}, "gpumem", "gpumem", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := &Question{About: About{Process: &Running{PID: 7, Frameworks: tc.loaded}}}
			if tc.as != "" {
				f, err := frameworks.ParseRelease(tc.as)
				if err != nil {
					t.Fatal(err)
				}
				q.As = f
			}
			q.chooseLoaded()
			if got := release(q.As); got != tc.want && (got != "" || tc.want != "jax") {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if diff := cmp.Diff(tc.notes, q.Notes); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSetDevice: what the process holds was free when it started, and free that
// is not known is not 0.
func TestSetDevice(t *testing.T) {
	const gib = 1 << 30
	holding := []device.Process{{PID: 9, Used: 2 * gib, Known: true}, {PID: 7, Used: 3 * gib, Known: true}, {PID: 7, Kind: "graphics", Used: 3 * gib, Known: true}}
	for _, tc := range []struct {
		name   string
		status device.Status
		pid    int // 0: none
		free   uint64
		json   string
	}{
		{"plain", device.Status{Free: 5 * gib, Used: 5 * gib, Processes: holding}, 0, 5 * gib,
			`{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":5368709120}`},
		{"held", device.Status{Free: 5 * gib, Used: 5 * gib, Processes: holding}, 7, 8 * gib,
			`{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":5368709120}`},
		{"not told", device.Status{Free: 5 * gib, Used: 5 * gib, Processes: []device.Process{{PID: 7}}}, 7, 5 * gib,
			`{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":5368709120}`},
		{"all free", device.Status{Free: 10 * gib}, 0, 10 * gib,
			`{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":10737418240}`},
		{"full", device.Status{Used: 10 * gib}, 0, 0,
			`{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":0}`},
		{"without NVML", device.Status{}, 0, 10 * gib,
			`{"device":"cuda:0","name":"H200","total_bytes":10737418240,"free_bytes":null}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := &Question{}
			if tc.pid != 0 {
				q.Process = &Running{PID: tc.pid}
			}
			tc.status.Info = device.Info{Name: "H200", Ordinal: 2, HasPages: tc.pid == 0, HasPools: tc.pid != 0, Total: 10 * gib, Granularity: 512, CCMajor: 9}
			tc.status.Notes = []string{"NVML: no\npermission"}
			q.setDevice(open.Listed{Words: "cuda:0", Status: tc.status})
			want := policy.Device{Ordinal: 2, Total: 10 * gib, Free: tc.free, Granularity: 512, CCMajor: 9, NoPages: tc.pid != 0, NoPools: tc.pid == 0}
			if got := q.On; got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			got, err := json.Marshal(q.Device)
			if err != nil || string(got) != tc.json {
				t.Errorf("%s, %v, want %s", got, err, tc.json)
			}
			if want := []string{"cuda:0: NVML: no\npermission"}; !slices.Equal(q.Notes, want) {
				t.Errorf("%q, want %q", q.Notes, want)
			}
		})
	}
}
