// Measures of the doctor on messages that are computed from numbers, on logs in
// other words, and on logs as they come out of terminals, chats and collectors.
//
//	go test ./doctor -run Measure -v              prints the tables
//	go test ./doctor -run Measure -samples 200    draws more
//	go test ./doctor -run Measure -measured       writes testdata/measured.txt anew
//	GPUMEM_EXAMPLES=1 go test ... -v              also prints answers that are wrong
//
// testdata/measured.txt has what is not at its goal yet, with today's figure. A
// figure that is worse fails. What is not in the file has to be at its goal, so
// the file only shrinks.
package doctor_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/doctor"
	"gpumem/internal/test/doctortest"
	"gpumem/node/machine"
)

var (
	samples     = flag.Int("samples", 30, "messages to draw of each class, and a tenth of that of each log")
	writeFigure = flag.Bool("measured", false, "write testdata/measured.txt anew")
)

const figuresFile = "testdata/measured.txt"

// Goals, in percent. Those of counts are 0: memory settings where memory is not to
// blame, answers turned from "not memory" to memory, claims that are not true.
const (
	goalRight     = 98 // of the messages of a class
	goalReworded  = 90 // the same in other words
	goalSureWrong = 3  // of the answers that are sure
	goalBroken    = 3  // answers changed by wraps, prefixes, escapes
	goalReworking = 10 // answers changed by other words
)

// TestMain lets garbage pile up to eight times what is live, which is a log or two: with the
// usual once a third of the time was the collector's.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// figures are the recorded ones, and those of this run that miss their goals.
type figures struct{ recorded, now map[string]float64 }

var measured = figures{recorded: readFigures(), now: map[string]float64{}}

func readFigures() map[string]float64 {
	text, _ := os.ReadFile(figuresFile)
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name[0] != '#' {
			out[name], _ = strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return out
}

// check holds a figure to its goal, or to the recorded one until it is there.
// atLeast says that more is better.
func (f *figures) check(t *testing.T, name string, value, goal float64, atLeast bool) {
	t.Helper()
	const rounding = 0.051
	worse := func(value, than float64) bool {
		return atLeast && value < than-rounding || !atLeast && value > than+rounding
	}
	if !worse(value, goal) {
		if _, ok := f.recorded[name]; ok {
			t.Logf("%s is at its goal: take it out of %s", name, figuresFile)
		}
		return
	}
	f.now[name] = value
	last, ok := f.recorded[name]
	switch {
	case *writeFigure || *samples != 30:
	case !ok:
		t.Errorf("%s: %.1f, want %v", name, value, goal)
	case worse(value, last):
		t.Errorf("%s: %.1f, was %.1f", name, value, last)
	}
}

// diagnosed is the answer to a log and the JSON of a state; "" is none.
func diagnosed(t testing.TB, log, state string) *doctor.Diagnosis {
	t.Helper()
	var s *machine.Snapshot
	if state != "" {
		var err error
		if s, err = machine.Read(strings.NewReader(state)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := doctor.Diagnose(strings.NewReader(log), s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// first is the first cause, or empty.
func first(d *doctor.Diagnosis) string {
	if len(d.Causes) == 0 {
		return ""
	}
	return string(d.Causes[0].ID)
}

// sure reports whether the answer names one cause and asks for nothing.
func sure(d *doctor.Diagnosis) bool {
	return d.Verdict == doctor.VerdictCause || d.Verdict == doctor.VerdictNonfatal || d.Verdict == doctor.VerdictNotMemory
}

// advises reports whether a memory setting is proposed. To mend a wrong variable
// is none.
func advises(d *doctor.Diagnosis) bool {
	return slices.ContainsFunc(d.Causes, func(c doctor.Cause) bool { return c.ID != doctor.BadSetting && len(c.Settings) > 0 })
}

// innocent reports whether the answer clears memory.
func innocent(d *doctor.Diagnosis) bool { return sure(d) && doctortest.Innocent(first(d)) }

// right reports whether the answer is what the numbers decide.
func right(d *doctor.Diagnosis, s doctortest.Sample) bool {
	listed := slices.Contains(s.Causes, first(d))
	switch {
	case s.Open:
		return !sure(d) && (d.Verdict == doctor.VerdictUnknown || len(s.Causes) == 0 || listed)
	case sure(d):
		return listed
	case len(s.Causes) > 1 && d.Verdict == doctor.VerdictEither: // each would do, and each is named
		return !slices.ContainsFunc(s.Causes, func(id string) bool {
			return !slices.ContainsFunc(d.Causes, func(c doctor.Cause) bool { return string(c.ID) == id })
		})
	case s.Asks && s.Innocent() && d.Verdict == doctor.VerdictUnknown:
		return true
	}
	return s.Asks && listed
}

// A score counts the answers to one class.
type score struct {
	n, right, wrong, sure int
	advice                int // memory settings where memory is not to blame
	denied                int // refused memory of which it says that no line mentions it
	silent                int // answers that are not sure and say no next step
}

// denial matches the claim that the log has no refusal.
var denial = regexp.MustCompile(`(?i)\bno line\b|\bnothing in the log\b`)

func (s *score) add(t *testing.T, m doctortest.Sample) bool {
	d := diagnosed(t, m.Log, m.State)
	ok := right(d, m)
	s.n++
	if sure(d) {
		s.sure++
	}
	switch {
	case ok:
		s.right++
	case sure(d):
		s.wrong++
	}
	if m.Innocent() && advises(d) {
		s.advice++
	}
	if !m.Innocent() && d.Verdict == doctor.VerdictUnknown && denial.MatchString(strings.Join(d.Certain, "\n")) {
		s.denied++
	}
	if !sure(d) && d.Decide == "" && len(d.Missing) == 0 {
		s.silent++
	}
	return ok
}

// sum adds the counts of another score.
func (s *score) sum(o *score) {
	s.n += o.n
	s.right += o.right
	s.wrong += o.wrong
	s.sure += o.sure
	s.advice += o.advice
	s.denied += o.denied
	s.silent += o.silent
}

func percent(part, whole int) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// TestMeasureGenerated asks about messages computed from numbers, as printed and
// in other words.
func TestMeasureGenerated(t *testing.T) {
	var order []string
	printed, reworded := map[string]*score{}, map[string]*score{}
	byCause, example := map[string]*score{}, map[string]string{}
	for _, m := range doctortest.Samples(*samples) {
		if printed[m.Class] == nil {
			order = append(order, m.Class)
			printed[m.Class], reworded[m.Class] = &score{}, &score{}
		}
		label := "(open)"
		if !m.Open {
			label = m.Causes[0]
		}
		if byCause[label] == nil {
			byCause[label] = &score{}
		}
		one := score{}
		ok := one.add(t, m)
		printed[m.Class].sum(&one)
		byCause[label].sum(&one)
		if !ok && example[m.Class] == "" {
			d := diagnosed(t, m.Log, m.State)
			example[m.Class] = fmt.Sprintf("%s: %s %s, want %v (open %v): %s\n%s", m.Class, d.Verdict, first(d), m.Causes, m.Open, m.Why, m.Log)
		}
		m.Log = doctortest.Paraphrase(m.Log, printed[m.Class].n)
		reworded[m.Class].add(t, m)
	}
	var total, totalReworded score
	t.Logf("%-36s %7s %10s %9s %7s | %9s %10s", "class", "right %", "sure wrong", "abstained", "advice", "reworded%", "sure wrong")
	for _, class := range order {
		p, r := printed[class], reworded[class]
		t.Logf("%-36s %7.1f %10d %9d %7d | %9.1f %10d", class, percent(p.right, p.n), p.wrong, p.n-p.right-p.wrong, p.advice,
			percent(r.right, r.n), r.wrong)
		measured.check(t, "right/"+class, percent(p.right, p.n), goalRight, true)
		measured.check(t, "reworded/"+class, percent(r.right, r.n), goalReworded, true)
		total.sum(p)
		totalReworded.sum(r)
		if testing.Verbose() && example[class] != "" && os.Getenv("GPUMEM_EXAMPLES") != "" {
			t.Log(example[class])
		}
	}
	for _, label := range slices.Sorted(maps.Keys(byCause)) {
		s := byCause[label]
		t.Logf("by cause: %-32s %4d asked, right %5.1f %%, sure but wrong %5.1f %%, abstained %5.1f %%", label, s.n, percent(s.right, s.n),
			percent(s.wrong, s.n), percent(s.n-s.right-s.wrong, s.n))
	}
	for name, s := range map[string]score{"printed": total, "reworded": totalReworded} {
		t.Logf("%s: %d messages, right %.1f %%, sure %d, of them wrong %.1f %%, memory advice where memory is not to blame %d, a refusal denied %d, no next step %d",
			name, s.n, percent(s.right, s.n), s.sure, percent(s.wrong, s.sure), s.advice, s.denied, s.silent)
		measured.check(t, "sure-wrong/"+name, percent(s.wrong, s.sure), goalSureWrong, false)
		measured.check(t, "advice/"+name, float64(s.advice), 0, false)
		measured.check(t, "denied/"+name, float64(s.denied), 0, false)
		measured.check(t, "no-next-step/"+name, float64(s.silent), 0, false)
	}
}

// A pasted is a log to be changed, with what is known of its machine.
type pasted struct {
	name, log, state string
	before           *doctor.Diagnosis // of the log as it is; nil until it is asked for
}

// settledLogs are the logs of third parties, where there are some beside the
// checkout; see their README.
func settledLogs(t *testing.T) []pasted {
	t.Helper()
	const dir = "../../shared/data/oomlogs"
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil
	}
	var rows []struct{ File, Ask string }
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	var out []pasted
	for _, row := range rows {
		log, err := os.ReadFile(filepath.Join(dir, row.File))
		if err != nil {
			t.Fatal(err)
		}
		stem := strings.TrimSuffix(row.File, ".log")
		var state []byte
		if row.Ask != "without_state" {
			state, _ = os.ReadFile(filepath.Join(dir, stem+".state.json"))
		}
		out = append(out, pasted{name: stem, log: string(log), state: string(state)})
	}
	return out
}

// generatedLogs are one message of each class.
func generatedLogs() []pasted {
	var out []pasted
	for _, m := range doctortest.Samples(1) {
		out = append(out, pasted{name: m.Class, log: m.Log, state: m.State})
	}
	return out
}

// answer is what must stay the same: the verdict and the first cause.
func answer(d *doctor.Diagnosis) string { return fmt.Sprint(d.Verdict, " ", first(d)) }

// changes counts the answers that n draws of change alter, and those that turn
// from "not memory" to memory. It logs some of them.
func changes(t *testing.T, logs []pasted, n int, change func(log string, n int) string) (asked, changed, blamed int, examples []string) {
	t.Helper()
	for i := range logs {
		p := &logs[i]
		if p.before == nil {
			p.before = diagnosed(t, p.log, p.state)
		}
		before := p.before
		seed := int(crc32.ChecksumIEEE([]byte(p.name))) // not its place in the list
		for k := range n {
			text := change(p.log, seed+k)
			asked++
			if text == p.log {
				continue
			}
			after := diagnosed(t, text, p.state)
			if answer(before) == answer(after) {
				continue
			}
			changed++
			if innocent(before) && !innocent(after) && (advises(after) || sure(after)) {
				blamed++
			}
			if len(examples) < 3 || os.Getenv("GPUMEM_EXAMPLES") != "" {
				examples = append(examples, fmt.Sprintf("%s: %s, was %s\n%.1500s", p.name, answer(after), answer(before), text))
			}
		}
	}
	return asked, changed, blamed, examples
}

// TestMeasureBroken asks about logs as terminals, chats and collectors break them.
func TestMeasureBroken(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: some ten thousand logs take ten seconds")
	}
	draws := max(1, *samples/30)
	for _, set := range []struct {
		name string
		logs []pasted
	}{{"logs", settledLogs(t)}, {"generated", generatedLogs()}} {
		if len(set.logs) == 0 {
			t.Log("skipped: no logs in ../shared/data/oomlogs beside the checkout")
			continue
		}
		sum, all := 0, 0
		for _, b := range doctortest.Breakages() {
			asked, changed, blamed, examples := changes(t, set.logs, draws, b.Apply)
			t.Logf("%-10s %-22s %4d asked, %5.1f %% changed, %d to memory", set.name, b.Name, asked, percent(changed, asked), blamed)
			measured.check(t, "broken/"+set.name+"/"+b.Name, percent(changed, asked), goalBroken, false)
			measured.check(t, "broken-to-memory/"+set.name+"/"+b.Name, float64(blamed), 0, false)
			sum, all = sum+changed, all+asked
			if os.Getenv("GPUMEM_EXAMPLES") != "" {
				t.Log(strings.Join(examples, "\n"))
			}
		}
		t.Logf("%s: %d asked, %.1f %% changed", set.name, all, percent(sum, all))
	}
}

// TestMeasureReworded asks about logs in other words.
func TestMeasureReworded(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: a thousand logs take four seconds")
	}
	logs := settledLogs(t)
	if len(logs) == 0 {
		t.Skip("skipped: no logs in ../shared/data/oomlogs beside the checkout")
	}
	asked, changed, blamed, examples := changes(t, logs, max(1, *samples/3), doctortest.Paraphrase)
	t.Logf("%d asked, %.1f %% changed, %d to memory", asked, percent(changed, asked), blamed)
	if os.Getenv("GPUMEM_EXAMPLES") != "" {
		t.Log(strings.Join(examples, "\n"))
	}
	measured.check(t, "reworded-logs/changed", percent(changed, asked), goalReworking, false)
	measured.check(t, "reworded-logs/to-memory", float64(blamed), 0, false)
}

// TestMeasuredFigures writes the figures of the tests above, where it is asked to.
func TestMeasuredFigures(t *testing.T) {
	if !*writeFigure {
		t.Skip("skipped: -measured is not set")
	}
	var b bytes.Buffer
	b.WriteString("# Figures of measure_test.go that are not at their goals yet: percent or a count.\n")
	for _, name := range slices.Sorted(maps.Keys(measured.now)) {
		fmt.Fprintf(&b, "%s %.1f\n", name, measured.now[name])
	}
	if err := os.WriteFile(figuresFile, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
