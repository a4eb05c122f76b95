package vocabulary

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestTable checks the table's own promises: sorted, no name twice, every column known, every
// source told. A row that remake has added has "?" until a person has set its columns.
func TestTable(t *testing.T) {
	sources := readSources(t)
	kinds := []Kind{AboutMemory, Open, AboutBusy, AboutLimit, AboutCode, AboutDriver, AboutDevice, AboutAddress, AboutAssert, AboutTimeout,
		AboutLaunch, AboutArgument, AboutLibrary, AboutDisk, AboutNetwork, AboutKilled, AboutPermission, AboutOther}
	resources := []Resource{NoResource, Memory, DeviceMemory, HostMemory, Pinned, AddressSpace, Handles, Sessions, Disk, Files,
		Processes, Count}
	layers := []Layer{UnknownLayer, Driver, Runtime, Library, Framework, Engine, Scheduler, Kernel, Limiter}
	var last string
	seen := map[string]bool{}
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		if line <= last {
			t.Errorf("%q: not sorted", line)
		}
		last = line
		if f := strings.Split(line, "\t"); !slices.Contains([]string{"yes", "no"}, f[6]) || !slices.Contains([]string{"yes", "no"}, f[7]) {
			t.Errorf("%q: sticky and fatal are yes or no", line)
		}
	}
	for _, r := range Rows() {
		id := string(r.Family) + " " + r.Name
		if seen[id] {
			t.Errorf("%s: twice", id)
		}
		seen[id] = true
		if !slices.Contains(kinds, r.Kind) || !slices.Contains(resources, r.Resource) || !slices.Contains(layers, r.Layer) {
			t.Errorf("%s: kind %q, resource %q, layer %q: set by hand?", id, r.Kind, r.Resource, r.Layer)
		}
		if !slices.Contains(sources, r.Source) {
			t.Errorf("%s: source %q is not in sources.txt", id, r.Source)
		}
		if r.Kind == AboutMemory && r.Resource == NoResource {
			t.Errorf("%s: memory of what?", id)
		}
		if !slices.ContainsFunc(families, func(f told) bool { return f.family == r.Family }) {
			t.Errorf("%s: the family has no words", id)
		}
	}
	if len(seen) < 1500 {
		t.Errorf("%d rows", len(seen))
	}
}

// readSources returns the ids of sources.txt.
func readSources(t *testing.T) (ids []string) {
	t.Helper()
	f, err := os.Open("sources.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "#") {
			ids = append(ids, strings.SplitN(lines.Text(), "\t", 2)[0])
		}
	}
	return ids
}

// TestParseRefuses checks that a table with a mistake is no table.
func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"columns": "CUresult\tCUDA_ERROR_X\t1\n",
		"number":  "CUresult\tCUDA_ERROR_X\tone\t\tnone\tdriver\tno\tyes\tother\tcuda.h\n",
	} {
		if _, err := parse(text); err == nil {
			t.Errorf("%s: parsed", name)
		}
	}
}

// has reports whether a hit means the row.
func has(hits []Hit, r *Row, by By) bool {
	return slices.ContainsFunc(hits, func(h Hit) bool { return h.By == by && (h.Row == r || slices.Contains(h.Others, r)) })
}

// namings are sentences with a name, as logs have them; the word of the family comes with it.
var namings = []string{
	"%[2]s failed: %[1]s",
	"[E] %[2]s: operation returned %[1]s.",
	"RuntimeError: %[2]s error: %[1]s (while calling it)",
	"code=1(%[1]s) %[2]s at main.cu:12",
	"Error, %[1]s, from %[2]s",
}

// word is a word that tells the family.
func word(r *Row) string {
	words := families[theIndex().family[r.Family]].words
	if words == "" {
		return "program"
	}
	return strings.TrimSuffix(strings.Fields(words)[0], "!")
}

func TestEveryNameIsFound(t *testing.T) {
	for i := range Rows() {
		r := &Rows()[i]
		by := ByName
		if wordEnd(r.Name, 0) < len(r.Name) {
			by = ByText
		}
		if named(r) {
			continue
		}
		for _, naming := range namings {
			line := fmt.Sprintf(naming, r.Name, word(r))
			if !has(Find(line), r, by) {
				t.Errorf("%s %s: not found in %q", r.Family, r.Name, line)
			}
		}
	}
}

func TestEveryTextIsFound(t *testing.T) {
	for i := range Rows() {
		r := &Rows()[i]
		for _, text := range r.Texts {
			lines := []string{word(r) + " error: " + text, word(r) + ": " + text}
			if strings.Contains(text, " ") {
				lines = append(lines, "the call of "+word(r)+" said: "+strings.ToUpper(text)+", and gave up")
			}
			for _, line := range lines {
				if !has(Find(line), r, ByText) {
					t.Errorf("%s %s: not found in %q", r.Family, r.Name, line)
				}
			}
		}
	}
}

// numberings are sentences with a number of a family; not each family writes each.
func numberings(r *Row, n int64) []string {
	switch r.Family {
	case "Xid":
		return []string{fmt.Sprintf("NVRM: Xid (PCI:0000:3b:00): %d, pid=77, name=python", n), fmt.Sprintf("kernel: XID %d detected", n)}
	case "signal":
		return []string{fmt.Sprintf("killed by signal %d", n), fmt.Sprintf("exited on signal: %d.", n)}
	case "exit status":
		return []string{fmt.Sprintf("Process finished with exit code %d", n), fmt.Sprintf("exitcode  : %d (pid: 4)", n),
			fmt.Sprintf("returned non-zero exit status %d.", n)}
	case "HRESULT", "NTSTATUS":
		return []string{fmt.Sprintf("CreateResource failed (0x%08X)", n), fmt.Sprintf("failed with exit code %d", int32(n)),
			fmt.Sprintf("%s 0x%x", word(r), n)}
	case "Win32":
		list := []string{fmt.Sprintf("[WinError %d] it says", n), fmt.Sprintf("failed (os error %d)", n)}
		if n != 5 && n != 14 { // E_ACCESSDENIED and E_OUTOFMEMORY
			list = append(list, fmt.Sprintf("HRESULT 0x%08X", 0x80070000+n))
		}
		return list
	case "errno":
		return []string{fmt.Sprintf("OSError: [Errno %d]", n), fmt.Sprintf("mmap failed, errno=%d", n), fmt.Sprintf("no luck (os error %d)", n)}
	case "OpenCL":
		return []string{fmt.Sprintf("clCreateBuffer failed (rc=%d)", n), fmt.Sprintf("clEnqueueNDRangeKernel: %d", n),
			fmt.Sprintf("OpenCL error %d", n)}
	}
	return []string{fmt.Sprintf("%s error %d", word(r), n), fmt.Sprintf("%s failed with error code: %d", word(r), n),
		fmt.Sprintf("%s returned status 0x%x.", word(r), n)}
}

func TestEveryNumberIsFound(t *testing.T) {
	for i := range Rows() {
		r := &Rows()[i]
		for _, n := range r.Numbers {
			for _, line := range numberings(r, n) {
				if n < 0 && strings.Contains(line, "0x-") {
					continue
				}
				if !has(Find(line), r, ByNumber) {
					t.Errorf("%s %s: not found in %q", r.Family, r.Name, line)
				}
			}
		}
	}
}

// TestForeignWording puts 100 random rows of a class into sentences that no program writes.
func TestForeignWording(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 40))
	before := []string{"well then,", "2026-11-28 23:59:01,123 worker-3 |", "<b>", "übel:", "step 12/900 loss=0.3;", "{\"msg\": \"",
		"\x1b[31m", "at rank 3 of 8,"}
	after := []string{"and that was that", "</b>", "\"}", "!", " :-(", "after 3.5 s", "\r"}
	pick := func(list []string) string { return list[random.IntN(len(list))] }
	classes := map[string]func(r *Row) bool{
		"memory": func(r *Row) bool { return r.Kind == AboutMemory }, "open": func(r *Row) bool { return r.Kind == Open },
		"sticky": func(r *Row) bool { return r.Sticky }, "other": func(r *Row) bool { return r.Kind != AboutMemory && r.Kind != Open },
	}
	for name, in := range classes {
		var rows []*Row
		for i := range Rows() {
			if r := &Rows()[i]; in(r) && !named(r) && wordEnd(r.Name, 0) == len(r.Name) {
				rows = append(rows, r)
			}
		}
		for range 100 {
			r := rows[random.IntN(len(rows))]
			line := pick(before) + " " + word(r) + " gave " + r.Name + " " + pick(after)
			hits := Find(line)
			i := slices.IndexFunc(hits, func(h Hit) bool { return h.Row == r && line[h.At:h.End] == r.Name })
			if i < 0 || len(hits[i].Others) > 0 {
				t.Errorf("%s: %s %s not found alone in %q: %v", name, r.Family, r.Name, line, spell(line, hits))
			}
		}
	}
}

// spell writes hits as "family name by", those of other families after a |.
func spell(text string, hits []Hit) (list []string) {
	for _, h := range hits {
		s := fmt.Sprintf("%s %s by %s %q", h.Row.Family, h.Row.Name, h.By, text[h.At:h.End])
		for _, o := range h.Others {
			s += fmt.Sprintf(" | %s", o.Family)
		}
		list = append(list, s)
	}
	return list
}
