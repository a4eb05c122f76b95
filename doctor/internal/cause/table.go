package cause

// The table of remedies: what each framework has against a shortage, in its own words and the
// flags of its releases.

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"gpumem/doctor/internal/account"
)

//go:embed remedies.txt
var remediesText string

// A row is one remedy of one framework.
type row struct {
	framework, need, since, until, text, source string
}

var rows = parseRows(remediesText)

func parseRows(text string) (all []row) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 5 || f[0][0] == '#' {
			continue
		}
		since, until, _ := strings.Cut(f[2], "-")
		all = append(all, row{f[0], f[1], since, until, f[3], f[4]})
	}
	return all
}

// leads begin the step that has the remedies for a need. Where there is none, each is a step.
var leads = map[string]string{
	"weights": "make the weights smaller: ", "cache": "make the cache smaller: ", "batch": "make it smaller: ",
	"graphs": "capture fewer graphs: ",
	"piece":  "make that one request smaller: ", "beside": "leave more room beside it: ", "limit": "raise the limit: ",
	"holes": "leave fewer holes: ", "look": "see what holds it: ",
	"requests": "make it smaller: ", "unified": "make it smaller: ", "block": "make it smaller: ", "padding": "make the padding smaller: ",
	"leak": "list it: ", "pair": "install the pair that belongs together, in a fresh environment without LD_LIBRARY_PATH: ",
}

// advise is what the program's framework has for each of the needs.
func (c *view) advise(needs ...string) (r Remedy) {
	for _, need := range needs {
		set := len(r.Settings)
		framework, texts := c.remedies(need)
		var words []string
		for _, text := range texts {
			if name, why, ok := strings.Cut(text, " | "); ok {
				name, value, _ := strings.Cut(strings.TrimPrefix(name, "set "), "=")
				r = r.set(name, value, why)
				continue
			}
			if !repeats(r.Steps, text) {
				words = append(words, text)
			}
		}
		if lead := leads[need]; lead != "" && len(words) > 0 {
			words = []string{lead + strings.Join(words, "; ")}
		}
		r = r.step(words...)
		if as := explained[framework]; as != "" && (need == "limit" || len(r.Settings) > set) {
			r.Check = "gpumem explain --as " + as
			if len(r.Settings) > set && r.Settings[set].Value != "" {
				r.Check = r.Settings[set].Name + "=" + r.Settings[set].Value + " " + r.Check
			}
		}
	}
	return r
}

// repeats reports whether steps name already what a text begins with, a flag or a setting.
func repeats(steps []string, text string) bool {
	name, _, _ := strings.Cut(text, " ")
	setting := strings.HasPrefix(name, "--") || strings.Contains(name, "=")
	return setting && slices.ContainsFunc(steps, func(s string) bool { return strings.Contains(s, name) })
}

// explained are the frameworks that gpumem explain knows, by its names for them.
var explained = map[string]string{"tensorflow": "tensorflow", "cupy": "cupy", "torch": "pytorch"}

// remedies are those for a need of the first framework that the program uses and that has any.
func (c *view) remedies(need string) (framework string, texts []string) {
	for _, row := range rows {
		if !c.meets(row.need, need) || framework != "" && row.framework != framework || !c.usesFramework(row.framework) {
			continue
		}
		if text, ok := row.of(c.release(row.framework)); ok {
			framework, texts = row.framework, append(texts, text)
		}
	}
	return framework, texts
}

// meets reports whether a row is for a need, under the conditions behind it: "batch.train.!+eager" is for "batch" where
// the log shows a program that trains and none that is eager.
func (c *view) meets(row, need string) bool {
	all := strings.Split(row, ".")
	return all[0] == need && !slices.ContainsFunc(all[1:], func(when string) bool {
		name, denied := strings.CutPrefix(when, "!")
		return c.shows(name) == denied
	})
}

// shows reports whether the log shows what a row depends on: that the program trains, or runs a model; what is open
// between the two; that it is the reader's program and not a server or an application; that the log is of before a
// year; a place, or a mark of topics.txt.
func (c *view) shows(what string) bool {
	applied := c.serves() || c.Uses("comfyui", "a1111", "ctranslate2", "llama.cpp", "ollama")
	run := !c.Place.Training && (c.Place.Inference || applied)
	switch what {
	case "train":
		return c.Place.Training && !applied
	case "run":
		return run
	case "open":
		return !run && !c.Place.Training
	case "own":
		return !applied
	}
	if year, ok := strings.CutPrefix(what, "before"); ok { // a log is no older than its program
		return c.Place.Year > 0 && fmt.Sprint(c.Place.Year) < year
	}
	return c.at(what) || c.Uses(what)
}

// of is the remedy for a release, if the release has it. Where the release is unknown, it says
// which have it.
func (r row) of(release string) (string, bool) {
	switch {
	case r.since == "" && r.until == "":
	case release != "":
		return r.text, (r.since == "" || !older(release, r.since)) && (r.until == "" || !older(r.until, release))
	case r.until == "":
		return noted(r.text, "since "+r.since), true
	case r.since == "":
		return noted(r.text, "up to "+r.until), true
	default:
		return noted(r.text, r.since+" to "+r.until), true
	}
	return r.text, true
}

// noted adds a note in brackets, or to those that end the text.
func noted(text, note string) string {
	if at := strings.LastIndexByte(text, '('); at > 0 && text[at-1] == ' ' && strings.HasSuffix(text, ")") {
		return strings.TrimSuffix(text, ")") + ", " + note + ")"
	}
	return text + " (" + note + ")"
}

// older reports whether a release is before another, in the parts that both have: 0.17.1 is
// one of 0.17.
func older(a, b string) bool {
	have, than := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(have), len(than)) {
		var x, y int // of 15rc0 the 15
		fmt.Sscanf(have[i], "%d", &x)
		fmt.Sscanf(than[i], "%d", &y)
		if x != y {
			return x < y
		}
	}
	return false
}

// usesFramework reports whether the log has evidence of a framework of the table.
func (c *view) usesFramework(name string) bool {
	switch name {
	case "any":
		return true
	case "torch":
		return c.onTorch(c.Last(func(*account.Refusal) bool { return true }))
	case "tensorflow":
		return c.OnTensorFlow()
	case "jax":
		return c.onJAX()
	case "tpu":
		return c.tpuRefusal() != nil
	}
	return c.Uses(name)
}

// release is the framework's release, empty if it is unknown.
func (c *view) release(framework string) string {
	v := c.Version(framework)
	if v == "" && framework == "torch" && c.OldTorch() {
		return "2.0"
	}
	return v
}

// programName is what the program that failed is called: its framework, by the table.
func (c *view) programName() string {
	for _, row := range rows {
		if row.need == "name" && c.usesFramework(row.framework) {
			return row.text
		}
	}
	return "the program"
}
