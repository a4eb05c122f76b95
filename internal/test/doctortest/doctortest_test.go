// Tests of the generator: the same cases each time, every cause, numbers that
// agree with each other, and variants that keep what decides.
package doctortest_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/internal/test/doctortest"
	"gpumem/size"
)

// causeIDs are all causes that a diagnosis can name, but unknown, which is a verdict.
var causeIDs = []string{
	"multi_process_preallocation", "jax_plus_tf", "prealloc_starves_library", "pool_limit", "fragmentation",
	"program_too_big", "remat_insufficient", "device_occupied", "startup_race", "same_process_second_pool",
	"other_allocator_same_process", "no_headroom_module_load", "nccl_headroom", "cuda_graph_headroom", "leak",
	"host_memory", "unified_memory", "external_quota", "limiter_bug", "estimator_underestimates",
	"nonfatal_warning", "bad_setting", "device_busy", "vmm_unsupported", "library_mismatch", "not_memory",
}

func TestCasesAreTheSameEachTime(t *testing.T) {
	first := doctortest.Cases()
	for range 3 {
		if !reflect.DeepEqual(first, doctortest.Cases()) {
			t.Fatal("two calls gave different cases")
		}
	}
	if len(first) < 200 {
		t.Errorf("%d cases, want at least 200", len(first))
	}
	t.Logf("%d base cases, %d with variants", len(doctortest.Base()), len(first))
}

func TestNamesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range doctortest.Cases() {
		if seen[c.Name] {
			t.Errorf("%s occurs twice", c.Name)
		}
		seen[c.Name] = true
	}
}

func TestEveryCauseOccurs(t *testing.T) {
	perCause, perVerdict := map[string]int{}, map[string]int{}
	for _, c := range doctortest.Base() {
		perVerdict[c.Verdict]++
		if c.Verdict != doctortest.VerdictNeeds && len(c.Causes) > 0 {
			perCause[c.Causes[0]]++
		}
	}
	for _, id := range causeIDs {
		if perCause[id] < 3 {
			t.Errorf("%s is first in %d base cases, want at least 3", id, perCause[id])
		}
	}
	for id := range perCause {
		if !slices.Contains(causeIDs, id) {
			t.Errorf("%s is no cause", id)
		}
	}
	if perVerdict[doctortest.VerdictUnknown] < 3 {
		t.Errorf("%d unknown, want at least 3", perVerdict[doctortest.VerdictUnknown])
	}
	t.Logf("base cases by first cause: %v", perCause)
	t.Logf("base cases by verdict: %v", perVerdict)
}

// TestCasesAreWellFormed checks what each verdict promises.
func TestCasesAreWellFormed(t *testing.T) {
	facts := []string{doctortest.FactProcesses, doctortest.FactTotal, doctortest.FactFrameworks, doctortest.FactFraction, doctortest.FactBackendRecreated}
	for _, c := range doctortest.Cases() {
		causes := map[string][2]int{
			doctortest.VerdictCause: {1, 1}, doctortest.VerdictEither: {2, 2}, doctortest.VerdictNeeds: {1, 4},
			doctortest.VerdictNonfatal: {1, 1}, doctortest.VerdictNotMemory: {1, 1}, doctortest.VerdictUnknown: {0, 0},
		}
		want, ok := causes[c.Verdict]
		if n := len(c.Causes); !ok || n < want[0] || n > want[1] {
			t.Errorf("%s: verdict %s with causes %v", c.Name, c.Verdict, c.Causes)
		}
		if (c.Verdict == doctortest.VerdictNeeds) != (len(c.Missing) > 0) {
			t.Errorf("%s: verdict %s with missing %v", c.Name, c.Verdict, c.Missing)
		}
		for _, fact := range c.Missing {
			if !slices.Contains(facts, fact) {
				t.Errorf("%s: %s is no fact of a state file", c.Name, fact)
			}
		}
		if c.Why == "" || strings.ContainsAny(c.Why, "\n") || len(c.Quotes) == 0 {
			t.Errorf("%s: why %q, quotes %q", c.Name, c.Why, c.Quotes)
		}
		if c.State != "" && !json.Valid([]byte(c.State)) {
			t.Errorf("%s: state is no JSON:\n%s", c.Name, c.State)
		}
	}
}

var escape = regexp.MustCompile("\x1b\\[[0-9;]*[mK]")

func TestVariantsKeepWhatDecides(t *testing.T) {
	for _, c := range doctortest.Cases() {
		plain := strings.Split(strings.ReplaceAll(escape.ReplaceAllString(c.Log, ""), "\r\n", "\n"), "\n")
		for _, quote := range c.Quotes {
			if !slices.ContainsFunc(plain, func(line string) bool { return strings.Contains(line, quote) }) {
				t.Errorf("%s lost %q:\n%s", c.Name, quote, c.Log)
			}
		}
	}
}

// TestVariantsDiffer checks each variant on one log by what it must show.
func TestVariantsDiffer(t *testing.T) {
	c := doctortest.Case{Name: "n", Log: "one thing\ndecides\nlast thing\n", Quotes: []string{"decides"}}
	for _, v := range []struct {
		got        doctortest.Case
		name, want string
	}{
		{doctortest.Colour(c), "n/colour", "\x1b[1;31mone thing\x1b[0m\x1b[K\n\x1b[1;32mdecides\x1b[0m\x1b[K\n\x1b[1;33mlast thing\x1b[0m\x1b[K\n"},
		{doctortest.CRLF(c), "n/crlf", "one thing\r\ndecides\r\nlast thing\r\n"},
		{doctortest.Prefixed(c, "0: "), "n/prefixed", "0: one thing\n0: decides\n0: last thing\n"},
		{doctortest.Truncated(c, true), "n/no-head", "thing\ndecides\nlast thing\n"},
		{doctortest.Truncated(c, false), "n/no-tail", "one thing\ndecides\nlast "},
		{doctortest.OneLine(c), "n/one-line", "one thing decides last thing"},
	} {
		if v.got.Name != v.name || v.got.Log != v.want {
			t.Errorf("%s: %q, want %s: %q", v.got.Name, v.got.Log, v.name, v.want)
		}
	}
	if got := doctortest.Interleaved(c).Log; strings.Count(got, "\n") != 6 || !strings.Contains(got, "\ndecides\n") {
		t.Errorf("interleaved: %q", got)
	}
}

// TestVariantsCanBeUndone checks on any log that a variant adds and takes nothing
// but what its name says.
func TestVariantsCanBeUndone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.StringMatching("[ -~]{0,40}"), 1, 8).Draw(t, "lines")
		c := doctortest.Case{Log: strings.Join(all, "\n") + "\n"}
		if got := escape.ReplaceAllString(doctortest.Colour(c).Log, ""); got != c.Log {
			t.Errorf("colour: %q", got)
		}
		if got := strings.ReplaceAll(doctortest.CRLF(c).Log, "\r\n", "\n"); got != c.Log {
			t.Errorf("crlf: %q", got)
		}
		if got := strings.ReplaceAll("\n"+doctortest.Prefixed(c, "\x00").Log, "\n\x00", "\n"); got != "\n"+c.Log {
			t.Errorf("prefixed: %q", got)
		}
		if got := doctortest.OneLine(c).Log; got != strings.Join(all, " ") {
			t.Errorf("one line: %q", got)
		}
		var kept []string
		for i, line := range strings.Split(strings.TrimSuffix(doctortest.Interleaved(c).Log, "\n"), "\n") {
			if i%2 == 1 {
				kept = append(kept, line)
			}
		}
		if !slices.Equal(kept, all) {
			t.Errorf("interleaved: %q", kept)
		}
	})
}

// TestLibrariesStarve checks that every refused handle that memory explains is
// told with less free than a handle and the first convolution need.
func TestLibrariesStarve(t *testing.T) {
	usage := regexp.MustCompile(`Memory usage: (\d+) bytes free`)
	for _, c := range doctortest.Base() {
		m := usage.FindStringSubmatch(c.Log)
		if m == nil || c.Verdict != doctortest.VerdictCause && c.Verdict != doctortest.VerdictNeeds {
			continue
		}
		if free := bytes(t, m[1]); free >= 520<<20 {
			t.Errorf("%s: %s is free", c.Name, size.Format(free))
		}
	}
}

// TestSizesAgree reads pairs of sizes out of the logs: the first is never above
// the second.
func TestSizesAgree(t *testing.T) {
	found := map[string]int{}
	for _, pair := range []struct {
		name    string
		pattern string
	}{
		{"free and total of a library", `Memory usage: (\d+) bytes free, (\d+) bytes total`},
		{"free and total before the start", `totalMemory: (?P<b>\S+) freeMemory: (?P<a>\S+)`},
		{"free and total at the start", `Total memory: (?P<b>\S+)\nFree memory: (?P<a>\S+)`},
		{"in use and limit of a pool", `Limit: +(?P<b>\S+)\nInUse: +(?P<a>\S+)`},
		{"free block and pool", `largest free chunk usable by lower end (\S+), unallocated bytes \S+, pool size (\S+),`},
		{"pool and its limit", `pool size (\S+), pool limit (\S+)`},
		{"old pool and its limit", `Total bytes in pool: (\d+) memory_limit_: (\d+)`},
		{"free and total of PyTorch", `total capac(?:i)?ty of (?P<b>\S+ \S+) of which (?P<a>\S+ \S+) is free`},
		{"process and total of PyTorch", `of (?P<b>\S+ \S+) of which \S+ \S+ is free. Including non-PyTorch memory, this process has (?P<a>\S+ \S+)`},
		{"allocated and process of PyTorch", `this process has (?P<b>\S+ \S+) memory in use. Of the allocated memory (?P<a>\S+ \S+) is`},
		{"reserved and total of old PyTorch", `(?P<b>\S+ \S+) total capacity; .* (?P<a>\S+ \S+) reserved in total`},
		{"allocated and reserved of old PyTorch", `; (\S+ \S+) already allocated; .* (\S+ \S+) reserved in total`},
		{"free and total of vLLM", `cuda:0 \((\S+)/(\S+) GiB\)`},
		{"used and total of nvidia-smi", `(\d+MiB) / +(\d+MiB)`},
		{"what remains after and before rematerialization", `only reduced to \S+ \((\d+) bytes\), down from \S+ \((\d+) bytes\)`},
		{"quota and what would be in use", `Device 0 OOM (?P<b>\d+) / (?P<a>\d+)`},
	} {
		re := regexp.MustCompile(pair.pattern)
		a, b := max(re.SubexpIndex("a"), 0), max(re.SubexpIndex("b"), 0)
		if a == 0 {
			a, b = 1, 2
		}
		for _, c := range doctortest.Base() {
			for _, m := range re.FindAllStringSubmatch(c.Log, -1) {
				found[pair.name]++
				if bytes(t, m[a]) > bytes(t, m[b]) {
					t.Errorf("%s: %s: %s above %s", c.Name, pair.name, m[a], m[b])
				}
			}
		}
		if found[pair.name] == 0 {
			t.Errorf("no log tells %s", pair.name)
		}
	}
}

// TestPyTorchAddsUp checks that the processes of a message and what is free are
// the card, to the last digits that the message prints.
func TestPyTorchAddsUp(t *testing.T) {
	head := regexp.MustCompile(`total capac(?:i)?ty of (\S+ \S+) of which (\S+ \S+) is free`)
	process := regexp.MustCompile(`[Pp]rocess (?:\d+ )?has (\S+ \S+) memory in use`)
	checked := 0
	for _, c := range doctortest.Base() {
		m, parts := head.FindStringSubmatch(c.Log), process.FindAllStringSubmatch(c.Log, -1)
		if m == nil || len(parts) == 0 {
			continue
		}
		sum := bytes(t, m[2])
		for _, p := range parts {
			sum += bytes(t, p[1])
		}
		total := bytes(t, m[1])
		if far := max(sum, total) - min(sum, total); far > 64<<20 {
			t.Errorf("%s: free and processes are %s, the card %s", c.Name, size.Format(sum), size.Format(total))
		}
		checked++
	}
	if checked < 10 {
		t.Errorf("%d messages checked, want at least 10", checked)
	}
}

// TestStatesAgree checks that no device of a state uses more than it has.
func TestStatesAgree(t *testing.T) {
	for _, c := range doctortest.Base() {
		if c.State == "" {
			continue
		}
		var s struct {
			Devices []struct {
				Total     uint64 `json:"total_bytes"`
				Used      uint64 `json:"used_bytes"`
				Processes []struct {
					Used uint64 `json:"used_bytes"`
				} `json:"processes"`
			} `json:"devices"`
		}
		if err := json.Unmarshal([]byte(c.State), &s); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		for _, d := range s.Devices {
			var sum uint64
			for _, p := range d.Processes {
				sum += p.Used
			}
			if d.Used > d.Total || sum > d.Used {
				t.Errorf("%s: processes %d, used %d, total %d", c.Name, sum, d.Used, d.Total)
			}
		}
	}
}

// TestTwinsShareTheirLog checks that a case with a state and the one without
// differ in nothing that can be read in the log.
func TestTwinsShareTheirLog(t *testing.T) {
	byName := map[string]doctortest.Case{}
	for _, c := range doctortest.Base() {
		byName[c.Name] = c
	}
	twins := 0
	for name, bare := range byName {
		stem, ok := strings.CutSuffix(name, "-no-state")
		if !ok {
			continue
		}
		twins++
		with := byName[stem]
		if with.Log != bare.Log || with.State == "" || bare.State != "" || with.Verdict != doctortest.VerdictCause || bare.Verdict != doctortest.VerdictNeeds {
			t.Errorf("%s and its twin: %+v\n%+v", name, with, bare)
		}
		if with.Causes[0] != bare.Causes[0] {
			t.Errorf("%s: first cause %s, its twin's %s", name, bare.Causes[0], with.Causes[0])
		}
	}
	if twins < 20 {
		t.Errorf("%d twins, want at least 20", twins)
	}
}

// TestSameTextSameVerdict checks that no two cases with the same log and state
// expect different things.
func TestSameTextSameVerdict(t *testing.T) {
	seen := map[string]doctortest.Case{}
	for _, c := range doctortest.Cases() {
		key := c.Log + "\x00" + c.State
		if first, ok := seen[key]; ok && (first.Verdict != c.Verdict || !slices.Equal(first.Causes, c.Causes)) {
			t.Errorf("%s and %s are the same text: %s %v and %s %v", first.Name, c.Name, first.Verdict, first.Causes, c.Verdict, c.Causes)
		}
		seen[key] = c
	}
}

// bytes reads a size as the logs print it.
func bytes(t *testing.T, text string) uint64 {
	t.Helper()
	if f, err := strconv.ParseFloat(text, 64); err == nil && strings.Contains(text, ".") {
		return uint64(f * (1 << 30)) // vLLM leaves the unit away
	}
	n, err := size.Parse(strings.TrimRight(text, ".,;"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
