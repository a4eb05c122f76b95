package replay_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/record/replay"
)

// decode is a report as a script sees it. Numbers stay as they are written.
func decode(t *testing.T, rep *replay.Report) (trace map[string]any, results []map[string]any) {
	t.Helper()
	data, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Trace   map[string]any
		Results []map[string]any
	}
	d := json.NewDecoder(strings.NewReader(string(data)))
	d.UseNumber()
	if err := d.Decode(&all); err != nil {
		t.Fatal(err)
	}
	return all.Trace, all.Results
}

func keys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// The names that scripts rely on.
var (
	traceFields  = strings.Fields("events allocs peak_live_bytes refused source")
	resultFields = strings.Fields(`policy pool device_bytes fits refused first_refused_event
		held_peak_bytes held_mean_bytes held_idle_bytes lower_bound_bytes late_driver_allocs
		stats fragmentation placement_fnv1a64 driver_calls driver_seconds seconds`)
	statsFields = strings.Fields(`num_allocs bytes_in_use peak_bytes_in_use largest_alloc_size bytes_limit bytes_reserved
		peak_bytes_reserved largest_free_block_bytes pool_bytes peak_pool_bytes`)
)

func sorted(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return all
}

func TestJSON(t *testing.T) {
	// The mean of 0, 2 and 2 MiB is no whole number of bytes.
	tr := text(t, "a 0 0\na 1 100\na 2 99999999\n")
	cfg := config(t, "sim:2MiB", "platform")
	trace, results := decode(t, run(t, tr, cfg))
	if diff := cmp.Diff(sorted(traceFields, []string{"format"}), keys(trace)); diff != "" {
		t.Errorf("trace (-want +got)\n%s", diff)
	}
	r := results[0]
	if diff := cmp.Diff(sorted(resultFields, []string{"first_refused"}), keys(r)); diff != "" {
		t.Errorf("result (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(sorted(statsFields), keys(r["stats"].(map[string]any))); diff != "" {
		t.Errorf("stats (-want +got)\n%s", diff)
	}
	for key, want := range map[string]any{
		"fits": false, "refused": json.Number("1"), "first_refused_event": json.Number("3"),
		"held_mean_bytes": json.Number("1398101"), "policy": "platform", "pool": "",
	} {
		if r[key] != want {
			t.Errorf("%s: %v, want %v", key, r[key], want)
		}
	}
	if d := r["placement_fnv1a64"].(string); len(d) != 16 || strings.Trim(d, "0123456789abcdef") != "" {
		t.Errorf("digest %q", d)
	}
	// Sizes are integers, in digits.
	for _, m := range []map[string]any{trace, r, r["stats"].(map[string]any), r["first_refused"].(map[string]any)} {
		for key, v := range m {
			if n, ok := v.(json.Number); ok && strings.Contains(key, "bytes") && strings.ContainsAny(n.String(), ".eE-") {
				t.Errorf("%s: %v", key, n)
			}
		}
	}

	// Without a refusal the event is null.
	cfg = config(t, "sim:1GiB", "platform", "bfc:limit=2MiB")
	_, results = decode(t, run(t, tr, cfg))
	if v, ok := results[0]["first_refused_event"]; !ok || v != nil {
		t.Errorf("first_refused_event: %v, %v", v, ok)
	}
	// The smallest device is there if it was asked for, and null if there is none.
	cfg.Smallest = true
	_, results = decode(t, run(t, tr, cfg))
	if v := results[0]["smallest_device_bytes"]; v != json.Number("102760448") { // 2 + 96 MiB
		t.Errorf("smallest_device_bytes: %v", v)
	}
	if v, ok := results[1]["smallest_device_bytes"]; !ok || v != nil {
		t.Errorf("smallest_device_bytes: %v, %v", v, ok)
	}
}

// TestJSONBack: what was written can be read into the same types.
func TestJSONBack(t *testing.T) {
	cfg := config(t, "sim:4MiB", "jax", "platform")
	cfg.Smallest = true
	rep := run(t, file(t, "..", "trace", "testdata", "torch2026.pickle"), cfg)
	data, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var back replay.Report
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	for i, r := range rep.Results {
		b := back.Results[i]
		if b.Policy != r.Policy || b.Pool != r.Pool || b.Stats != r.Stats || *b.Smallest != *r.Smallest || b.Digest != r.Digest {
			t.Errorf("%+v\n%+v", r, b)
		}
	}
}
