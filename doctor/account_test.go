package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"gpumem/doctor/internal/inventory"
	"gpumem/size"
)

// plainAdvice is left out of the cases: it is said of every pool of PyTorch.
const plainAdvice = "what is allocated returns to the pool"

// accountWords is an account for reading.
func accountWords(d *Diagnosis) string {
	var b strings.Builder
	fmt.Fprint(&b, d.Verdict)
	if len(d.Causes) > 0 {
		fmt.Fprint(&b, " ", d.Causes[0].ID)
	}
	b.WriteString("\n")
	if d.Account == nil {
		return b.String()
	}
	for _, r := range d.Account.Rows {
		from := fmt.Sprint(r.From.Line)
		if r.From.Line == 0 {
			from = r.From.Text
		}
		fmt.Fprintf(&b, "%s | %s | %s | %s | %s\n", r.Subject, r.What, size.Format(r.Bytes), from, r.Kind)
	}
	for _, s := range d.Account.Odd {
		fmt.Fprintln(&b, "odd:", s)
	}
	for _, s := range d.Account.Returns {
		if !strings.HasPrefix(s, plainAdvice) {
			fmt.Fprintln(&b, "returns:", s)
		}
	}
	return b.String()
}

// accountCases are those of testdata/accounts: a log, or a state, and its account.
func accountCases(t *testing.T) (names []string, of map[string]map[string]string) {
	files, err := filepath.Glob("testdata/accounts/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	of = map[string]map[string]string{}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			name, part, _ := strings.Cut(f.Name, "/")
			name = strings.TrimSuffix(filepath.Base(file), ".txtar") + "/" + name
			if of[name] == nil {
				names, of[name] = append(names, name), map[string]string{}
			}
			of[name][part] = string(f.Data)
		}
	}
	return names, of
}

// TestAccounts holds accounts to what was read in the logs by hand.
func TestAccounts(t *testing.T) {
	names, of := accountCases(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			d := diagnose(t, of[name]["log"], of[name]["state.json"])
			if diff := cmp.Diff(of[name]["want"], accountWords(d)); diff != "" {
				t.Error(diff)
			}
			borne(t, d, of[name]["log"]+of[name]["state.json"])
		})
	}
}

// borne checks that the parts of a subject are together at most its total, that they name their
// lines, and that the text is short.
func borne(t *testing.T, d *Diagnosis, log string) {
	t.Helper()
	if d.Account == nil {
		t.Fatal("no account")
	}
	parts, totals := map[string]uint64{}, map[string]uint64{}
	lines := strings.Count(log, "\n") + 1
	for _, r := range d.Account.Rows {
		switch r.Kind {
		case inventory.Part:
			parts[r.Subject] += r.Bytes
		case inventory.Total:
			totals[r.Subject] = r.Bytes
		}
		if r.From.Text == "" || r.From.Line > lines {
			t.Errorf("%s, %s is from line %d %q", r.Subject, r.What, r.From.Line, r.From.Text)
		}
	}
	for name, total := range totals {
		if parts[name] > total {
			t.Errorf("%s: parts of %d, total %d", name, parts[name], total)
		}
	}
	var b bytes.Buffer
	if err := WriteText(&b, []Answer{{Log: "x", Diagnosis: d}}, 80); err != nil {
		t.Fatal(err)
	}
	text := strings.Split(b.String(), "\n")
	if d.Verdict == VerdictAccount && len(text) > screenLines+1 {
		t.Errorf("%d lines\n%s", len(text), b.String())
	}
	for _, line := range text {
		if len([]rune(line)) > 80 {
			t.Errorf("a line of %d: %s", len([]rune(line)), line)
		}
	}
}

// TestAccountsOfTheField are what people pasted when they asked where their memory is.
func TestAccountsOfTheField(t *testing.T) {
	dir := "../../shared/data/field3"
	if _, err := os.Stat(dir); err != nil {
		t.Skip("skipped: the field's logs are not here: ", err)
	}
	for _, tc := range []struct {
		file string
		has  []string // lines of the account
	}{
		{"instructlab-summary.txt", []string{"PyTorch, GPU 0 | allocated | 13.99 GiB | 12 | part",
			"PyTorch, GPU 0 | reserved by its pool | 14.24 GiB | 14 | total"}},
		{"ollama-9181.log", []string{"Ollama's plan | on the GPUs | 87.10 GiB | 1 | part", "44 of 81 layers are on the GPU"}},
		{"torch-35901.txt", []string{"PyTorch, GPU 0 | allocated | 1.04 GiB | 8 | part",
			"PyTorch, GPU 0 | reserved by its pool | 12.13 GiB | 16 | total"}},
		{"deepspeed-2899.log", []string{"PyTorch | allocated | 0 B | 7 | part", "PyTorch | cached, free | 55.83 GiB | 7 | part",
			"torch.cuda.empty_cache() returns up to 55.83 GiB to the driver; call it after initialisation"}},
		{"vllm-11251-start.log", []string{"| weights | 7.51 GiB", "| outside PyTorch | 399.36 MiB", "| activations at their peak | 2.53 GiB",
			"| KV cache | 3.76 GiB", "| total of the GPU | 15.77 GiB"}},
		{"doctor-zero-ooms.log", []string{"The program | allocated at its peak | 10.50 GiB | 3 | other"}},
		{"smi-rpf.csv", []string{"GPU | in use | 10.65 GiB | 9 | part", "in use rose by 318 MiB", "the most of the recording"}},
		{"jax-18954.txt", []string{"A compiled function | code | 2.79 KiB"}},
		{"module_0006.jit_step.cpu_after_optimizations-buffer-assignment.txt",
			[]string{"| parameters | 26 MiB", "| results | 24.00 MiB", "| temporaries | 4 MiB", "| together | 54.00 MiB"}},
		{"module_0006.jit_step.cpu_after_optimizations-memory-usage-report.txt", []string{"| together | 54.00 MiB"}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			log, err := os.ReadFile(filepath.Join(dir, tc.file))
			if err != nil {
				t.Fatal(err)
			}
			d := diagnose(t, string(log), "")
			got := accountWords(d)
			if d.Verdict != VerdictAccount {
				t.Errorf("verdict %s", got)
			}
			for _, line := range tc.has {
				if !strings.Contains(got, line) {
					t.Errorf("%q is not in\n%s", line, got)
				}
			}
			borne(t, d, string(log))
		})
	}
}

var sizes = regexp.MustCompile(`\d[\d.]* (?:[KMGT]i)?B\b`)

// TestAccountsPrintOnlyTheirFigures: each size in a sentence is that of a row, or a difference or
// sum of two figures of the log.
func TestAccountsPrintOnlyTheirFigures(t *testing.T) {
	names, of := accountCases(t)
	for _, name := range names {
		d := diagnose(t, of[name]["log"], of[name]["state.json"])
		known := map[string]bool{}
		var all []uint64
		for _, f := range sizes.FindAllString(of[name]["log"], -1) {
			if n, err := size.Parse(f); err == nil {
				all = append(all, n)
			}
		}
		for _, r := range d.Account.Rows {
			all = append(all, r.Bytes)
		}
		for _, x := range all {
			known[size.Format(x)] = true
			for _, y := range all {
				known[size.Format(x+y)] = true
				known[size.Format(max(x, y)-min(x, y))] = true
			}
		}
		if name == "pytorch/grows" {
			known["512 MiB"] = true // 2 GiB in four steps
		}
		for _, s := range append(append([]string{}, d.Account.Odd...), d.Account.Returns...) {
			for _, f := range sizes.FindAllString(s, -1) {
				if !known[f] {
					t.Errorf("%s: %s is in no line and no row: %s", name, f, s)
				}
			}
		}
	}
}

// TestAccountOfALongLog: the last figures count, however many there were, and growth is said
// without a rate where lines were left out.
func TestAccountOfALongLog(t *testing.T) {
	var log strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&log, "MA %d.5 GB         Max_MA 1.5 GB         CA %d.0 GB         Max_CA 2 GB \n", i, i+1)
	}
	got := accountWords(diagnose(t, log.String(), ""))
	for _, want := range []string{"account\nPyTorch | allocated | 19.53 TiB | 20000 | part\n",
		"grows from 512 MiB (line 1) to 19.53 TiB (line 20000)\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

// TestAccountJSON is the promise to scripts: rows with what, bytes and from, and odd.
func TestAccountJSON(t *testing.T) {
	d := diagnose(t, "MA 0.0 GB         Max_MA 1.5 GB         CA 2.0 GB         Max_CA 2 GB \n", "")
	var b bytes.Buffer
	if err := WriteJSON(&b, []Answer{{Log: "x", Diagnosis: d}}); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Verdict string
		Account struct {
			Rows []struct {
				What  string
				Bytes *uint64
				From  struct {
					Line int
					Text string
				}
			}
			Odd []string
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	a := got.Account
	if got.Verdict != "account" || len(a.Rows) != 4 || len(a.Odd) == 0 {
		t.Fatalf("%s", b.String())
	}
	if r := a.Rows[0]; r.What != "allocated" || r.Bytes == nil || r.From.Line != 1 {
		t.Errorf("the first row: %s", b.String())
	}
}

// FuzzAccount reads any lines: no panic, and parts are at most their total.
func FuzzAccount(f *testing.F) {
	files, _ := filepath.Glob("testdata/accounts/*.txtar")
	for _, file := range files {
		if archive, err := txtar.ParseFile(file); err == nil {
			for _, a := range archive.Files {
				f.Add(a.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		r, err := inventory.ReadAll(bytes.NewReader(log))
		if err != nil {
			t.Fatal(err)
		}
		a := r.Account(nil)
		if a == nil {
			return
		}
		parts, totals := map[string]uint64{}, map[string]uint64{}
		for _, row := range a.Rows {
			switch row.Kind {
			case inventory.Part:
				parts[row.Subject] = size.Add(parts[row.Subject], row.Bytes)
			case inventory.Total:
				totals[row.Subject] = row.Bytes
			}
		}
		for name, total := range totals {
			if parts[name] > total {
				t.Errorf("%s: parts of %d, total %d", name, parts[name], total)
			}
		}
	})
}

// TestPeakBelowThePresent: a peak is no less than what is allocated at the same moment.
func TestPeakBelowThePresent(t *testing.T) {
	for log, odd := range map[string]bool{
		"step 1: MA 0.5 GB Max_MA 0.1 GB CA 13 GB Max_CA 13 GB\n": true,
		"step 1: MA 0.5 GB Max_MA 0.6 GB CA 13 GB Max_CA 13 GB\n": false,
	} {
		d := diagnose(t, log, "")
		if d.Account == nil || strings.Contains(strings.Join(d.Account.Odd, "\n"), "no reading of that moment") != odd {
			t.Errorf("%s%s", log, inWords(d))
		}
	}
}
