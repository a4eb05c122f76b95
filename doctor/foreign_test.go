package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"gpumem/doctor/internal/vocabulary"
	"gpumem/internal/test/doctortest"
)

// foreign are the forms in which a row of the vocabulary comes through programs that know nothing of
// it: the error as it is spelled, within what the program prints around it.
var foreign = []struct {
	name string
	form func(said string, draw *rand.Rand) string
}{
	{"traceback", func(said string, draw *rand.Rand) string {
		module := pick(draw, "ops/step.py", "lib/runner.py", "app/main.py")
		return fmt.Sprintf("Traceback (most recent call last):\n  File \"/srv/%s\", line %d, in %s\n    out = self.call(batch)\n          ^^^^^^^^^^^^^^^^\n%s: %s\n",
			module, 1+draw.IntN(900), pick(draw, "run", "forward", "<module>"),
			pick(draw, "RuntimeError", "acme.errors.StepFailed", "Exception"), said)
	}},
	{"what", func(said string, draw *rand.Rand) string {
		return fmt.Sprintf("terminate called after throwing an instance of '%s'\n  what():  %s\nAborted (core dumped)\n",
			pick(draw, "std::runtime_error", "acme::device_error", "thrust::system::system_error"), said)
	}},
	{"go", func(said string, draw *rand.Rand) string {
		return fmt.Sprintf("2026/03/05 10:11:%02d %s: %s\nexit status 1\n", draw.IntN(60),
			pick(draw, "serve: cannot run the model", "worker 3: step 12", "main.go:88: launch"), said)
	}},
	{"syslog", func(said string, draw *rand.Rand) string {
		return fmt.Sprintf("Mar  5 10:11:%02d node%d %s[%d]: %s\n", draw.IntN(60), 1+draw.IntN(9), pick(draw, "trainer", "acmed", "python3"),
			1000+draw.IntN(9000), said)
	}},
	{"json", func(said string, draw *rand.Rand) string {
		quoted, _ := json.Marshal(said) // a string
		return fmt.Sprintf("{\"ts\": \"2026-03-05T10:11:%02dZ\", \"level\": \"%s\", \"msg\": %s, \"rank\": %d}\n", draw.IntN(60),
			pick(draw, "error", "fatal"), quoted, draw.IntN(8))
	}},
}

func pick(draw *rand.Rand, words ...string) string { return words[draw.IntN(len(words))] }

// sentences are what programs say around a name, a text or a number: of whom, and the error.
var sentences = []string{"%[1]s said %[2]s", "call into %[1]s came back with %[2]s", "%[1]s: %[2]s, giving up",
	"the %[1]s layer reports %[2]s at this point", "got %[2]s from %[1]s"}

// familyWords are a word that tells a family, where a sentence has to.
var familyWords = map[vocabulary.Family]string{
	"common": "the program", "engine": "the engine", "exception": "the program", "Linux": "the kernel", "cudaError": "CUDA",
	"CUresult": "CUDA", "hipError": "HIP", "Level Zero": "Level Zero", "Unified Runtime": "SYCL", "PI": "SYCL",
	"NTSTATUS": "ntstatus", "HRESULT": "hresult", "Win32": "Windows", "errno": "errno", "signal": "signal", "exit status": "exit status",
	"Xid": "NVRM", "NV_STATUS": "NVRM", "absl": "grpc", "HSA": "HSA", "Ascend": "Ascend", "Slurm": "slurm", "Kubernetes": "kubelet",
}

// inSentence is a row of the vocabulary in a sentence, by its name or a text; "" if its name is ours
// alone, and it has no text.
func inSentence(r *vocabulary.Row, draw *rand.Rand) string {
	said := r.Name
	nameless := r.Family == "common" || r.Family == "engine" || r.Family == "exit status"
	switch {
	case nameless && len(r.Texts) == 0:
		return ""
	case len(r.Texts) > 0 && (nameless || draw.IntN(2) == 0):
		said = pick(draw, r.Texts...)
	}
	word := familyWords[r.Family]
	if word == "" {
		word = string(r.Family)
	}
	return fmt.Sprintf(pick(draw, sentences...), word, said)
}

// readsRow reports whether a diagnosis has the meaning of a row: memory is the GPU's or the host's
// as the row says, and what is none is not blamed on it. What is open, or no failure, may be either.
func readsRow(d *Diagnosis, r *vocabulary.Row) bool {
	blamed := slices.ContainsFunc(ids(d), func(id string) bool { return !doctortest.Innocent(id) })
	host := slices.Contains(ids(d), string(HostMemory)) || slices.Contains(ids(d), string(UnifiedMemory))
	first := append(ids(d), "")[0]
	switch {
	case r.Kind == vocabulary.Open || r.Kind == vocabulary.AboutKilled || !r.Fatal:
		return true
	case r.Kind == vocabulary.AboutMemory && r.Resource == vocabulary.HostMemory:
		return host
	case r.Kind == vocabulary.AboutMemory:
		refused := d.Verdict != VerdictNotMemory && d.Verdict != VerdictNonfatal && !slices.Contains(d.Certain, noRefusal)
		return refused && (r.Resource == vocabulary.Memory || first != string(HostMemory))
	}
	return !blamed || r.Kind == vocabulary.AboutBusy
}

// TestVocabularyInForeignForms draws rows of each class of the vocabulary, by what is short and who
// says so, and puts them into what programs print that the doctor has no rule for. At least 85 of
// 100 of a class are read, and 99 of 100 of all.
func TestVocabularyInForeignForms(t *testing.T) {
	type class struct {
		resource vocabulary.Resource
		layer    vocabulary.Layer
	}
	classes := map[class][]*vocabulary.Row{}
	for i := range vocabulary.Rows() {
		r := &vocabulary.Rows()[i]
		classes[class{r.Resource, r.Layer}] = append(classes[class{r.Resource, r.Layer}], r)
	}
	drawn := 100
	if testing.Short() {
		drawn = 20
	}
	asked, read := 0, 0
	for _, of := range slices.SortedFunc(maps.Keys(classes), func(a, b class) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.layer, b.layer))
	}) {
		draw := rand.New(rand.NewPCG(40, uint64(31*len(of.resource)+len(of.layer))))
		n, good, example := 0, 0, ""
		for range drawn {
			r := classes[of][draw.IntN(len(classes[of]))]
			sentence := inSentence(r, draw)
			if sentence == "" {
				continue
			}
			log := foreign[draw.IntN(len(foreign))].form(sentence, draw)
			d := diagnose(t, log, "")
			if n++; readsRow(d, r) {
				good++
			} else {
				example = fmt.Sprintf("%s %s is about %s, and %q is %s %v", r.Family, r.Name, r.Kind, log, d.Verdict, ids(d))
			}
		}
		if t.Logf("%s by %s: %d of %d", of.resource, of.layer, good, n); good < n-max(n*15/100, 3) {
			t.Errorf("%s by %s: %d of %d are read: %s", of.resource, of.layer, good, n, example)
		}
		asked, read = asked+n, read+good
	}
	if 100*read < 99*asked {
		t.Errorf("%d of %d are read, want 99 of 100", read, asked)
	}
}
