package main

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build compiles the driver and the peers that need no other's source.
func build(t *testing.T, names ...string) (folder string) {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++, which the peers need")
	}
	folder = t.TempDir()
	compile := func(args ...string) {
		cmd := exec.Command("g++", append([]string{"-O1", "-std=c++17", "-Wall", "-Wextra", "-Werror"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("g++: %v\n%s", err, out)
		}
	}
	compile("cpp/replay.cc", "-o", filepath.Join(folder, "replay"), "-ldl")
	for _, name := range names {
		compile("-shared", "-fPIC", "cpp/"+name+".cc", "-o", filepath.Join(folder, name+".so"))
	}
	return folder
}

// traceOf writes a trace of 30 blocks of 3 MiB, of which ten are live at once.
func traceOf(t *testing.T) *input {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bfc", "small.txt")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	ids := strings.Fields("a b c d e f g h i j")
	var b strings.Builder
	for range 3 {
		for _, id := range ids {
			b.WriteString("a " + id + " 3145728\n")
		}
		for _, id := range ids {
			b.WriteString("f " + id + "\n")
		}
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	in, err := column{"small", "bfc/small", 1 << 30}.open(t.Context(), filepath.Dir(filepath.Dir(file)), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.trace.Close(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// The driver and package replay must agree on a peer that both have: a grant for each
// block, in this module's simulated device and in device/sim.
func TestDriverMeasuresAsReplay(t *testing.T) {
	folder := build(t, "direct")
	in := traceOf(t)
	o := options{built: folder, repeats: 2, budget: 10}
	got, err := peer{name: "direct", version: "ours", file: filepath.Join(folder, "direct.so")}.measure(t.Context(), o, in)
	if err != nil {
		t.Fatal(err)
	}
	want, err := measureOwn(t.Context(), in, "platform", 1)
	if err != nil {
		t.Fatal(err)
	}
	if *got.calls != *want.calls || *got.held != math.Round(*want.held) || *got.smallest != *want.smallest || got.digest != want.digest || got.refused != 0 {
		t.Errorf("the driver: %d calls, %.0f held, smallest %d, digest %s, %d refused; replay: %d, %.0f, %d, %s",
			*got.calls, *got.held, *got.smallest, got.digest, got.refused, *want.calls, *want.held, *want.smallest, want.digest)
	}
	if got.ns == "" || strings.HasPrefix(got.ns, ">") {
		t.Errorf("time per operation is %q", got.ns)
	}
}

func TestDriverNoticesOverlap(t *testing.T) {
	folder := build(t, "null", "wrong")
	in := traceOf(t)
	o := options{built: folder, repeats: 2, budget: 10}
	if _, err := (peer{file: filepath.Join(folder, "null.so")}).measure(t.Context(), o, in); err != nil {
		t.Error(err)
	}
	_, err := peer{file: filepath.Join(folder, "wrong.so")}.measure(t.Context(), o, in)
	if err == nil || !strings.Contains(err.Error(), "event 22: the block of 3145728 bytes at 0x7f00020fffff overlaps another") {
		t.Errorf("the peer whose blocks overlap: %v", err)
	}
}

func TestOptions(t *testing.T) {
	marked := filepath.Join(t.TempDir(), "marked.md")
	if err := os.WriteFile(marked, []byte("<!-- others -->\n```\nold\n```\n<!-- end -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, want string }{
		{"", ""},
		{"-only train_lifo,adv_bin -repeats 1 -budget 0.5", ""},
		{"-document " + marked, ""},
		{"-bogus", "flag provided but not defined: -bogus"},
		{"-repeats 0", "--repeats 0: want at least 1"},
		{"-budget 0", "--budget 0: want more than 0 seconds"},
		{"-budget NaN", "--budget NaN: want more than 0 seconds"},
		{"-only trian_lifo", `--only "trian_lifo": no such trace`},
		{"train_lifo", `"train_lifo": no such argument`},
		{"-document main.go", "--out: main.go has no markers for the table"},
		{"-document nowhere.md", "--out: open nowhere.md"},
		{"-only adv_bin -document " + marked, "--out takes no --only"},
	} {
		_, err := parseOptions(strings.Fields(tc.args))
		if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, errUsage) || !strings.HasPrefix(err.Error(), tc.want)) {
			t.Errorf("%q: %v, want %q", tc.args, err, tc.want)
		}
	}
	if got, err := replaced(marked, "new\n"); err != nil || got != "<!-- others -->\n```\nnew\n```\n<!-- end -->\n" {
		t.Errorf("the table is put in as %q, %v", got, err)
	}
}

func TestParse(t *testing.T) {
	const whole = "refused 1\ncalls 2\nheld_mean 3\nlive_mean 2.5\npeak_live 9\ndigest 00ff\nns 12.3\n"
	f, err := parse(whole + "smallest 1048576\n")
	if err != nil || f.refused != 1 || *f.calls != 2 || *f.held != 3 || f.digest != "00ff" || f.ns != "12" || *f.smallest != 1<<20 {
		t.Errorf("all figures: %+v, %v", f, err)
	}
	if f, err := parse("over 20000\n"); err != nil || f.ns != "> 20,000" || f.calls != nil {
		t.Errorf("a peer that is too slow: %+v, %v", f, err)
	}
	for name, text := range map[string]string{
		"nothing":           "",
		"cut short":         strings.TrimSuffix(whole, "ns 12.3\n"),
		"a peer that talks": "allocator ready\n" + whole,
		"no number":         whole + "smallest many\n",
		"negative":          strings.Replace(whole, "calls 2", "calls -1", 1),
		"not a number":      strings.Replace(whole, "ns 12.3", "ns NaN", 1),
		"infinite":          strings.Replace(whole, "ns 12.3", "ns Inf", 1),
		"twice":             whole + "calls 2\n",
	} {
		if f, err := parse(text); err == nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestWrite: what the cells of the tables say of a pool that takes its device at the start, of
// one that refuses too much, and of a peer without figures.
func TestWrite(t *testing.T) {
	in := traceOf(t)
	calls, whole, smallest := uint64(1), float64(in.device), 2*in.trace.PeakLive
	var b strings.Builder
	write(&b, []peer{{name: "pool", version: "its source"}}, []*input{in}, []row{
		{"pool", []figures{{ns: "12", calls: &calls, held: &whole, smallest: &smallest, refused: 1}}},
		{"refuses", []figures{{ns: "13", calls: &calls, held: &whole, refused: in.trace.Allocs/20 + 1}}},
		{"slow", []figures{{ns: "> 20,000"}}},
	})
	got := b.String()
	_, got, _ = strings.Cut(got, "\n\n") // without the machine
	const want = `ns per operation     small
pool                    12
refuses                  -
slow              > 20,000

smallest device / peak of live bytes  small
pool                                  2.000

bytes held, mean / live, mean  small
pool                             all
refuses                            -

driver calls  small
pool              1
refuses           -

requests refused  small
pool                  1
refuses               2

pool: its source
`
	if got = strings.ReplaceAll(got, "\n\n\n", "\n\n"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// TestPeerThatHangs: a peer that sleeps for ever is ended, and one that fails leaves the
// others' figures.
func TestPeerThatHangs(t *testing.T) {
	if _, err := exec.LookPath("sleep"); err != nil {
		t.Skip("no command sleep, which stands for a peer that hangs")
	}
	folder := t.TempDir()
	script := "#!/bin/sh\nsleep 1000 &\nexec sleep 1000\n"
	if err := os.WriteFile(filepath.Join(folder, "replay"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	in := traceOf(t)
	o := options{built: folder, repeats: 1, budget: 0.02}
	rows, failed, err := measure(t.Context(), o, []peer{{name: "sleeper", version: "1"}}, []*input{in})
	if err != nil || !strings.HasPrefix(failed, "FAILED sleeper on small: ") || !strings.Contains(failed, "deadline") {
		t.Fatalf("%q, %v", failed, err)
	}
	if got := rows[len(rows)-1].figures[0].ns; got != "failed" {
		t.Errorf("its cell is %q", got)
	}
}
