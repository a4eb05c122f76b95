package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/internal/test/gpucheck/report"
	"gpumem/internal/test/gpucheck/tables"
)

const (
	costs   = "MemInfo 8us\n\tabout: x\nMemMap 2us\n\tabout: x\n"
	outside = "cuDNN.jax 500MiB\n\tabout: x\n"
)

// A folder has both tables.
func folder(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, of := range []struct{ path, text string }{{tables.Costs.Path, costs}, {tables.Outside.Path, outside}} {
		path := filepath.Join(root, of.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(of.text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// good is a report whose figures are taken.
func good() *report.Report {
	return &report.Report{
		Format: report.Format, Begun: time.Date(2026, 11, 28, 23, 0, 0, 0, time.UTC),
		Machine: report.Machine{GPU: "NVIDIA H200", Driver: "580.1", CC: "9.0"},
		Results: []report.Result{
			{Name: "costs", Outcome: report.Held, Figures: []report.Figure{{Name: "cost.MemInfo", Value: 6, Unit: "us"}}},
			{Name: "outside-jax", Outcome: report.Wrong, Faults: []string{"outside.all.jax: 520 MiB, and the estimate is 500 MiB"},
				Figures: []report.Figure{{Name: "outside.cuDNN.jax", Value: 480 << 20, Unit: "bytes"}, {Name: "outside.all.jax", Value: 520 << 20, Unit: "bytes"}}},
		},
	}
}

// TestRun: with one wrong input each. What is refused changes no table.
func TestRun(t *testing.T) {
	const remadeCosts = "MemInfo 6us\n\tmeasured: 6us on NVIDIA H200, driver 580.1, 2026-11-28\n\tabout: x\nMemMap 2us\n\tabout: x\n"
	const remadeOutside = "cuDNN.jax 540MiB\n\tmeasured: 540MiB on NVIDIA H200, driver 580.1, 2026-11-28\n\tabout: x\n"
	for _, tc := range []struct {
		name           string
		change         func(*report.Report)
		says, err      string // says is a line of what is printed; err without the path before it
		costs, outside string // "": as they were
		forced         string // the error with --force; "-": as without
	}{
		{name: "good", change: func(*report.Report) {}, costs: remadeCosts, outside: remadeOutside,
			says: "node/internal/overhead/overhead.txt: no entry for all.jax, measured as 5.4526e+08 bytes"},
		{name: "simulated", change: func(r *report.Report) { r.Machine.Simulated = true }, err: "measured on a simulated GPU, which says nothing of a real one", forced: "-"},
		{name: "another card", change: func(r *report.Report) { r.Machine.CC = "8.0" }, err: "measured on NVIDIA H200, of compute capability 8.0, and the tables are of 9.0; --force takes it"},
		{name: "another card, by two digits", change: func(r *report.Report) { r.Machine.CC = "90.0" }, err: "measured on NVIDIA H200, of compute capability 90.0, and the tables are of 9.0; --force takes it"},
		{name: "an unknown card", change: func(r *report.Report) { r.Machine.CC = "" }, err: "measured on NVIDIA H200, of an unknown compute capability, and the tables are of 9.0; --force takes it"},
		{name: "a slice", change: func(r *report.Report) { r.Machine.MIG = "1g.18gb" }, err: "measured on NVIDIA H200, a slice (1g.18gb), and the tables are of a whole GPU; --force takes it"},
		{name: "another format", change: func(r *report.Report) { r.Format = "gpu-check/2" }, err: `format "gpu-check/2", want "gpu-check/1"`, forced: "-"},
		{name: "a crashed check", change: func(r *report.Report) { r.Results[0].Outcome = report.Crashed }, outside: remadeOutside,
			says: "device/sim/costs.txt: 1 figures of costs are not taken: it is crashed", err: "figures of 1 checks were not taken", forced: "-"},
		{name: "a wrong check", change: func(r *report.Report) {
			r.Results[0].Outcome, r.Results[0].Faults = report.Wrong, []string{"TestRealCosts: lost"}
		}, outside: remadeOutside,
			says: "device/sim/costs.txt: 1 figures of costs are not taken: it is wrong otherwise: TestRealCosts: lost", err: "figures of 1 checks were not taken", forced: "-"},
		{name: "a value far off", change: func(r *report.Report) { r.Results[0].Figures[0].Value = 1e9 }, outside: remadeOutside,
			says: "device/sim/costs.txt: LEFT: MemInfo 16m40s, was 8us: more than a factor of 4 from the table", err: "1 figures were left, see LEFT; --force takes them"},
		{name: "a lower estimate", change: func(r *report.Report) { r.Results[1].Figures[0].Value = 160 << 20 }, costs: remadeCosts,
			says: "node/internal/overhead/overhead.txt: LEFT: cuDNN.jax 180MiB, was 500MiB: less than the table has, which is to be enough for other programs, too",
			err:  "1 figures were left, see LEFT; --force takes them"},
		{name: "nothing", change: func(r *report.Report) { r.Results = nil }, says: "device/sim/costs.txt: the report has no figure for it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := good()
			tc.change(r)
			root := folder(t)
			path := filepath.Join(root, "report.json")
			if err := r.Write(path); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run([]string{"--root", root, path}, &out)
			text := ""
			if err != nil {
				text = strings.TrimPrefix(err.Error(), path+": ")
			}
			if text != tc.err || !strings.Contains(out.String(), tc.says) {
				t.Errorf("error %q, want %q; printed\n%s\nwant %q in it", text, tc.err, out.String(), tc.says)
			}
			for _, of := range []struct{ path, want, before string }{{tables.Costs.Path, tc.costs, costs}, {tables.Outside.Path, tc.outside, outside}} {
				want := of.want
				if want == "" {
					want = of.before
				}
				if got, _ := os.ReadFile(filepath.Join(root, of.path)); string(got) != want {
					t.Errorf("%s is\n%s\nwant\n%s", of.path, got, want)
				}
			}
			err = run([]string{"--root", root, "--force", path}, &out)
			if forced := err != nil; forced != (tc.forced == "-") {
				t.Errorf("by force: %v", err)
			}
		})
	}
}

// TestRunOfWhatIsNoReport: one file is read, which is a report.
func TestRunOfWhatIsNoReport(t *testing.T) {
	root := folder(t)
	text := filepath.Join(root, tables.Costs.Path)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "--tables: want [--force] and one report.json of gpu-check"},
		{[]string{"a", "b"}, "--tables: want [--force] and one report.json of gpu-check"},
		{[]string{"--forec", "a"}, "flag provided but not defined: -forec\n--tables: want [--force] and one report.json of gpu-check"},
		{[]string{"/nowhere/report.json"}, "open /nowhere/report.json: no such file or directory"},
		{[]string{text}, text + ": not a report of gpu-check: invalid character 'M' looking for beginning of value"},
	} {
		if err := run(append([]string{"--root", root}, tc.args...), new(strings.Builder)); err == nil || err.Error() != tc.want {
			t.Errorf("%q: %v, want %s", tc.args, err, tc.want)
		}
	}
}
