// Tests against whole JAX releases: what became of random environments, asked by
// testdata/xla/environments.py.

package frameworks

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/test/envtest"
	"gpumem/policy"
)

var environmentsFile = flag.String("environments", "testdata/xla/environments.txt", "`file` of environments.py for TestEnvironments")

// An environmentRow is one environment with the answers of the releases.
type environmentRow struct {
	line    int
	device  policy.Device
	env     policy.Environment
	text    string
	answers []environmentAnswer
}

type environmentAnswer struct {
	release string
	kind    string   // gpu, cpu, raise, end
	words   []string // after it
}

// environmentReleases are those asked.
var environmentReleases = []string{"0.10.1", "0.11.2", "0.12.0.1"}

func readEnvironments(t *testing.T) []environmentRow {
	t.Helper()
	f, err := os.Open(*environmentsFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var rows []environmentRow
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "env "):
			words := strings.SplitN(line, " ", 5)
			row := environmentRow{line: n, text: words[4], device: policy.Device{CCMajor: 8, NoPages: words[3] == "0"}}
			row.device.Total, _ = strconv.ParseUint(words[1], 10, 64)
			row.device.Free, _ = strconv.ParseUint(words[2], 10, 64)
			row.env = envtest.Environ(t, words[4]).In("", "testdata/xla")
			rows = append(rows, row)
		default:
			words := strings.SplitN(strings.TrimSpace(line), " ", 4)
			row := &rows[len(rows)-1]
			in := false
			for _, release := range environmentReleases {
				in = in || release == words[0]
				if in {
					row.answers = append(row.answers, environmentAnswer{release, words[2], words[3:]})
				}
				if release == words[1] {
					break
				}
			}
		}
	}
	if err := in.Err(); err != nil || len(rows) == 0 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	return rows
}

// TestEnvironmentsLikeWholeReleases: limit, pool, error or death as the release
// itself had them.
func TestEnvironmentsLikeWholeReleases(t *testing.T) {
	asked, agreed := 0, 0
	for _, row := range readEnvironments(t) {
		for _, want := range row.answers {
			asked++
			if problem := row.compare(t, want); problem != "" {
				t.Errorf("%s:%d: %s %s: %s", *environmentsFile, row.line, want.release, row.text, problem)
			} else {
				agreed++
			}
		}
	}
	t.Logf("%d of %d answers agree", agreed, asked)
}

// compare is how the reading differs from what the release did; empty if it does not.
func (row environmentRow) compare(t *testing.T, want environmentAnswer) string {
	t.Helper()
	d := row.device
	if want.kind == "gpu" && strings.Contains(want.words[0], "cuMemAlloc") {
		d.Granularity = 1 // the stand-in's
	}
	a, e := readAs(t, "jax", want.release, row.env, d)
	said := "no error"
	if e.Text != "" {
		if line, _, more := strings.Cut(e.Text, "\n"); more { // of a text with line breaks the table has the first line
			e.Text = line
		}
		said = fmt.Sprintf("%s: %q, %s", e.Name, e.Text, e.Then)
	}
	rest := strings.Join(want.words, " ")
	differs := said + "; want " + want.kind + " " + rest
	stage, rest, _ := strings.Cut(rest, " ")
	switch want.kind {
	case "cpu":
		if !strings.Contains(e.Then, "runs on the CPU") {
			return differs
		}
	case "raise":
		text, err := strconv.Unquote(rest)
		kind, text, _ := strings.Cut(text, ": ")
		switch {
		case err != nil:
			return err.Error()
		case strings.Contains(text, "RESOURCE_EXHAUSTED: Out of memory") && e.Text == "" && a.Policy.Granted(d) == 0: // which explain says
			return ""
		case e.Text == "" || !strings.Contains(e.Then, "raise") && !strings.Contains(e.Then, "fails"):
			return differs
		case !strings.Contains(text, e.Text) && !strings.Contains(e.Then, text):
			return differs
		case stage == "import" != strings.Contains(e.Then, "import") || stage == "put" != strings.Contains(e.Then, "copy"):
			return differs + ", at " + stage
		case !strings.Contains(e.Then, kind) && kind != "JaxRuntimeError":
			return differs + ", of the type " + kind
		}
	case "end":
		status, quoted, _ := strings.Cut(rest, " ")
		text, err := strconv.Unquote(quoted)
		switch {
		case err != nil:
			return err.Error()
		case status == "-11":
			if !strings.Contains(e.Then, "SIGSEGV") || stage != "put" {
				return differs
			}
		case !strings.Contains(e.Then, "aborts"):
			return differs
		case !strings.Contains(strings.ReplaceAll(text, "\n", " "), e.Text):
			return differs
		}
	case "gpu":
		if strings.Contains(e.Then, "SIGSEGV") { // a race: up to 0.11.2 two small copies sometimes get through
			return ""
		}
		if e.Text != "" {
			return differs
		}
		return row.compareGPU(a.Policy, d, stage, rest, differs)
	}
	return ""
}

// compareGPU compares the limit, what the pool holds after a first put, and what
// the driver was asked for first.
func (row environmentRow) compareGPU(p policy.Policy, d policy.Device, limit, rest, differs string) string {
	pool, calls, _ := strings.Cut(rest, " ")
	call, first, _ := strings.Cut(strings.SplitN(calls, ",", 2)[0], ":")
	firstBytes, _ := strconv.ParseUint(strings.TrimSuffix(first, "!"), 10, 64)
	switch p.Kind {
	case policy.BFC:
		ours := p.Granted(d)
		if call == "cuMemCreate" { // in whole units
			ours = up(ours)
		}
		ask := p.FirstGrant(d)
		if call == "cuMemCreate" {
			ask = up(ask)
		}
		switch {
		case limit != strconv.FormatInt(int64(p.LimitBytes(d)), 10):
			return fmt.Sprintf("limit %d; want %s", p.LimitBytes(d), limit)
		case pool != strconv.FormatUint(ours, 10) && up(ours) != up(number(pool)):
			return fmt.Sprintf("gets %d; want %s", ours, pool)
		case p.GrantLimit == 0 && ask != firstBytes:
			return fmt.Sprintf("asks for %d first; want %d", ask, firstBytes)
		case p.Managed != (call == "cuMemAllocManaged"):
			return "unified memory or not: " + differs
		}
	case policy.Platform, policy.Address, policy.VMM:
		if limit != "none" {
			return p.Kind.String() + ": " + differs
		}
	case policy.Async:
		var made []grant
		for _, word := range strings.Split(calls, ",") {
			name, bytes, _ := strings.Cut(word, ":")
			digits, refused := strings.CutSuffix(bytes, "!")
			made = append(made, grant{name, number(digits), refused})
		}
		if last := made[len(made)-1]; call != "threshold" || last.bytes != 1024 { // the first array
			return differs
		}
		return compareAsync(p, row.device, row.env, made[:len(made)-1])
	}
	return ""
}

func number(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}
