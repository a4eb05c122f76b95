package doctor

// How the doctor does on logs of third parties, and how much of that survives when
// the same text is wrapped, prefixed, escaped or told in other words.

import (
	"encoding/json"
	"fmt"
	"html"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/machine"
)

// A thirdParty is a log with its label.
type thirdParty struct {
	settled
	log, state string
}

func thirdParties(t testing.TB) (list []thirdParty) {
	t.Helper()
	dirs := []string{"../../shared/data/oomlogs"}
	if more := os.Getenv("GPUMEM_OOMLOGS"); more != "" {
		dirs = append(dirs, filepath.SplitList(more)...)
	}
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
		if err != nil {
			continue
		}
		var rows []settled
		if err := json.Unmarshal(text, &rows); err != nil {
			t.Fatal(err)
		}
		for _, s := range rows {
			log, err := os.ReadFile(filepath.Join(dir, s.File))
			if err != nil {
				t.Fatal(err)
			}
			var state []byte
			if s.Ask != "without_state" {
				state, _ = os.ReadFile(filepath.Join(dir, strings.TrimSuffix(s.File, ".log")+".state.json"))
			}
			list = append(list, thirdParty{s, string(log), string(state)})
		}
	}
	if len(list) == 0 {
		t.Skip("skipped: no logs in ../shared/data/oomlogs beside the checkout")
	}
	return list
}

// quietly is a diagnosis as one line: the verdict and the first cause, or all that fit.
func quietly(log, state string) string {
	var s *machine.Snapshot
	if state != "" {
		s, _ = machine.Read(strings.NewReader(state))
	}
	d, err := Diagnose(strings.NewReader(log), s)
	if err != nil {
		return err.Error()
	}
	list := ids(d)
	if d.Verdict != VerdictEither && d.Verdict != VerdictNeeds && len(list) > 1 {
		list = list[:1]
	}
	return fmt.Sprint(d.Verdict, list)
}

func eachLine(log string, f func(string) []string) string {
	var out []string
	for _, l := range strings.Split(strings.TrimSuffix(log, "\n"), "\n") {
		out = append(out, f(l)...)
	}
	return strings.Join(out, "\n") + "\n"
}

func hardWrap(n int) func(string) []string {
	return func(l string) (out []string) {
		for len(l) > n {
			out, l = append(out, l[:n]), l[n:]
		}
		return append(out, l)
	}
}

func softWrap(n int) func(string) []string {
	return func(l string) (out []string) {
		for len(l) > n {
			i := strings.LastIndexByte(l[:n+1], ' ')
			if i <= 0 {
				i = n
			}
			out, l = append(out, l[:i]), strings.TrimPrefix(l[i:], " ")
		}
		return append(out, l)
	}
}

// A disguise changes a text without changing what it says.
type disguise struct {
	name string
	make func(string) string
}

func disguises() (list []disguise) {
	add := func(name string, f func(string) string) { list = append(list, disguise{name, f}) }
	for _, n := range []int{60, 80, 100, 120, 160, 200} {
		add(fmt.Sprint("hard ", n), func(s string) string { return eachLine(s, hardWrap(n)) })
		add(fmt.Sprint("soft ", n), func(s string) string { return eachLine(s, softWrap(n)) })
		add(fmt.Sprint("hard, prefixed ", n), func(s string) string {
			return eachLine(s, func(l string) (out []string) {
				for _, p := range hardWrap(n)(l) {
					out = append(out, "[rank0]: "+p)
				}
				return out
			})
		})
		add(fmt.Sprint("soft, prefixed ", n), func(s string) string {
			return eachLine(s, func(l string) (out []string) {
				for _, p := range softWrap(n)(l) {
					out = append(out, "2026-03-05T10:11:12.345678Z stderr F "+p)
				}
				return out
			})
		})
	}
	for _, p := range []string{"[rank0]: ", "(pid=31877) ", "(EngineCore_DP0 pid=31877) ", "2026-03-05T10:11:12.345678Z stderr F ", "trainer-1  | ", "2026-03-05 10:11:12,345 - trainer - ERROR - ", "0: ", "Mar  5 10:11:12 node7 train[31877]: ", "> ", "    ", "[1,0]<stderr>:", "ERROR:root:"} {
		add("prefix "+p, func(s string) string { return eachLine(s, func(l string) []string { return []string{p + l} }) })
	}
	md := strings.NewReplacer("_", `\_`, "*", `\*`, "[", `\[`, "]", `\]`, "<", `\<`, ">", `\>`)
	add("markdown", md.Replace)
	add("markdown _", func(s string) string { return strings.ReplaceAll(s, "_", `\_`) })
	add("html", html.EscapeString)
	add("html br", func(s string) string { return strings.ReplaceAll(html.EscapeString(s), "\n", "<br>\n") })
	add("json", func(s string) string { b, _ := json.Marshal(s); return `{"log":` + string(b) + "}\n" })
	add("json lines", func(s string) string {
		return eachLine(s, func(l string) []string {
			b, _ := json.Marshal(l + "\n")
			return []string{`{"log":` + string(b) + `,"stream":"stderr","time":"2031-02-03T04:05:06.789012Z"}`}
		})
	})
	add("crlf", func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") })
	add("one line", func(s string) string { return strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", " ") + "\n" })
	add("repr", func(s string) string { return "b'" + strings.ReplaceAll(s, "\n", `\n`) + "'\n" })
	add("colour", func(s string) string {
		return eachLine(s, func(l string) []string { return []string{"\x1b[1;31m" + l + "\x1b[0m\x1b[K"} })
	})
	add("fence", func(s string) string { return "Hi, this fails:\n```\n" + s + "```\nWhat can I do?\n" })
	add("long before", func(s string) string { return strings.Repeat("epoch 3 step 1200 loss 0.7134 lr 0.00030\n", 400) + s })
	add("after", func(s string) string { return s + strings.Repeat("saved checkpoint to /data/run7/ckpt-1200\n", 50) })
	add("twice", func(s string) string { return s + s })
	add("between", func(s string) string {
		return eachLine(s, func(l string) []string { return []string{l, "epoch 3 step 1200 loss 0.7134 lr 0.00030"} })
	})
	return list
}

// synonyms are words of messages with others for them. Numbers, names of settings and
// status codes stay.
var synonyms = [][]string{
	{"Tried to allocate", "Attempted to allocate", "Tried to reserve", "Could not allocate", "Attempt to obtain"},
	{"trying to allocate", "attempting to allocate", "trying to reserve", "while allocating"},
	{"failed to allocate", "could not allocate", "unable to allocate", "was not able to reserve", "cannot allocate"},
	{"Failed to allocate", "Could not allocate", "Unable to reserve", "Cannot allocate"},
	{"failed to alloc", "could not allocate", "unable to alloc"},
	{"has a total capacity of", "has a capacity of", "has total memory of", "has a total size of"},
	{"has a total capacty of", "has a capacity of", "has total memory of"},
	{"total capacity", "total memory", "capacity"},
	{"of which", "and", "of that"},
	{"is free", "is available", "is unused", "remains free", "is left"},
	{"Memory usage:", "Memory in use:", "Memory state:", "Memory:"},
	{"bytes free", "bytes available", "bytes left"},
	{"memory in use", "of memory in use", "memory occupied", "memory used"},
	{"already allocated", "in use", "allocated already"},
	{"is allocated by PyTorch", "is in use by PyTorch", "is held by PyTorch"},
	{"is reserved by PyTorch but unallocated", "is reserved by PyTorch but not allocated", "is cached by PyTorch but unused"},
	{"reserved in total by PyTorch", "reserved by PyTorch in total", "held in reserve by PyTorch"},
	{"ran out of memory", "is out of memory", "exhausted its memory"},
	{"Out of memory", "Ran out of memory", "Not enough memory", "Memory exhausted"},
	{"out of memory", "memory exhausted", "insufficient memory", "not enough memory"},
	{"Could not create", "Failed to create", "Unable to create", "Cannot create"},
	{"failed to create", "could not create", "unable to create"},
	{"Failed to load", "Could not load", "Unable to load"},
	{"failed call to", "unsuccessful call to", "error in call to"},
	{"Failed to determine", "Could not determine", "Unable to find"},
	{"is less than desired", "is below the desired", "is smaller than desired"},
	{"No available memory for", "No memory available for", "There is no memory left for"},
	{"allocated so far", "in use so far", "already allocated"},
	{"limit set to", "limit is", "maximum set to"},
	{"Maximum pool size exceeded", "Pool size limit exceeded", "Exceeded the maximum pool size"},
	{"is larger than", "is more than", "exceeds"},
	{"from device", "on the device", "from the GPU"},
	{"cannot open shared object file", "can not open shared object"},
	{"Could not load dynamic library", "Cannot load dynamic library", "Unable to load dynamic library"},
	{"may be due to OOM", "might be due to OOM"},
	{"this is not a failure", "that this is no failure", "this isn't a failure"},
	{"symbol not found", "symbol is missing", "symbol could not be found"},
	{"is specified together with", "is set together with", "is given along with"},
	{"env var must be", "environment variable has to be"},
	{"does not support", "doesn't support", "has no support for"},
	{"busy or unavailable", "busy or not available"},
	{"failed:", "did not succeed:", "was unsuccessful:"},
	{"Can't reduce", "Cannot reduce", "Could not reduce"},
	{"only reduced to", "reduced only to"},
	{"Total memory", "Memory total"},
	{"exceeds the", "is above the", "is greater than the"},
}

// otherWords is the log with about half of what can be said otherwise said otherwise.
func otherWords(log string, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	for _, s := range synonyms {
		if r.IntN(10) < 6 {
			log = strings.ReplaceAll(log, s[0], s[1+r.IntN(len(s)-1)])
		}
	}
	return log
}

// TestMeasure counts. GPUMEM_MEASURE=v lists what changed.
func TestDisguises(t *testing.T) {
	verbose := os.Getenv("GPUMEM_MEASURE")
	logs := thirdParties(t)
	right, sure, sureWrong := 0, 0, 0
	for _, l := range logs {
		found := l.check(t, l.log, l.state)
		if found == "" {
			right++
		} else if verbose != "" {
			t.Logf("WRONG %s\n%s", l.File, found)
		}
		d := diagnose(t, l.log, l.state)
		if d.Verdict == VerdictCause || d.Verdict == VerdictNonfatal || d.Verdict == VerdictNotMemory {
			sure++
			if id := ids(d)[0]; id != l.Cause && !slices.Contains(l.Also, id) {
				sureWrong++
				t.Logf("sure and wrong (%s): %s: %s, is %s", l.Group, l.File, id, l.Cause)
			}
		}
	}
	t.Logf("right %d of %d; sure %d, of them wrong %d", right, len(logs), sure, sureWrong)
	total, changed := 0, 0
	for _, d := range disguises() {
		n := 0
		var which []string
		for _, l := range logs {
			if a, b := quietly(l.log, l.state), quietly(d.make(l.log), l.state); a != b {
				n++
				which = append(which, fmt.Sprintf("%s: %s -> %s", l.File, a, b))
			}
		}
		total, changed = total+len(logs), changed+n
		if n > 0 {
			t.Logf("%-32s %d", d.name, n)
			if verbose != "" {
				t.Log(strings.Join(which, "\n"))
			}
		}
	}
	t.Logf("disguised: %d of %d changed (%.1f %%)", changed, total, 100*float64(changed)/float64(total))
	total, changed, blamed := 0, 0, 0
	for _, l := range logs {
		a := quietly(l.log, l.state)
		for seed := range uint64(10) {
			total++
			other := otherWords(l.log, seed)
			b := quietly(other, l.state)
			if a == b {
				continue
			}
			changed++
			if strings.HasPrefix(a, "not_memory") || strings.HasPrefix(a, "nonfatal") || strings.HasPrefix(a, "cause[library_mismatch") {
				blamed++
			}
			if verbose != "" {
				t.Logf("PARA %s: %s -> %s\n%s", l.File, a, b, clipped(other))
			}
		}
	}
	t.Logf("in other words: %d of %d changed (%.1f %%), %d of them from not memory", changed, total, 100*float64(changed)/float64(total), blamed)
}
