package cause

// The program's own advice, where it prints one and the numbers do not speak against it.

import (
	"regexp"
	"slices"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// advises is where a sentence begins that says what to do, and ends is where it ends.
var (
	advises = regexp.MustCompile("(?:^|[.;:,!?]\\s+|\n\\s*)((?:(?i:please) )?(?i:try|use|set|reduce|decrease|increase|consider|lower|you need to)\\b)")
	ends    = regexp.MustCompile("[.!?;](?:\\s+[A-Z\"'`(]|\\s*$)|\n")
)

// mostQuoted is how much of it is repeated, in bytes.
const mostQuoted = 160

// ownAdvice is what a text advises, quoted, and empty if it does not advise, or of what is known to
// be no help: the hint at fragmentation is printed whatever the cause, and is weighed there.
func ownAdvice(text string) string {
	text = statement.Clipped64(text)
	for _, at := range advises.FindAllStringSubmatchIndex(text, 4) {
		said := text[at[2]:]
		if end := ends.FindStringIndex(said); end != nil {
			said = said[:end[0]]
		}
		said = strings.TrimSpace(said)
		if !strings.Contains(said, "disable this feature") && !strings.Contains(said, "fragmentation") && !strings.Contains(said,
			"TF_GPU_ALLOCATOR") && len(strings.Fields(said)) > 3 {
			return shortened(said)
		}
	}
	return ""
}

// shortened cuts a text between words.
func shortened(text string) string {
	text = strings.ToValidUTF8(text, "")
	if len(text) <= mostQuoted {
		return text
	}
	cut := strings.LastIndexByte(text[:mostQuoted-3], ' ')
	return text[:max(cut, 0)] + "..."
}

// refuted reports whether the numbers, or the cause, speak against what a text advises: a larger
// share is for a limit, and what a pool does not have it cannot give back.
func (c *view) refuted(x *Explanation, said string) bool {
	low := strings.ToLower(said)
	switch s := c.Shortfall; {
	case strings.Contains(said, "WATERMARK_RATIO"): // it stands last in the remedy, with what it risks
		return true
	case strings.Contains(low, "increas") && strings.Contains(low, "gpu_memory_utilization"), strings.Contains(low, "increase --mem-fraction"):
		return x.Cause != "pool_limit"
	case strings.Contains(said, "empty_cache"):
		return s != nil && s.Idle < s.Want
	}
	return false
}

// repeatAdvice adds the program's own advice to the first explanation of its line that it suits,
// behind the first step.
func (c *view) repeatAdvice(all []Explanation) {
	for i := range all {
		x := &all[i]
		said := c.adviceOf(x)
		if said == "" || x.Verdict != "" || x.Cause == "bad_setting" || c.refuted(x, said) {
			continue
		}
		x.Remedy.Steps = slices.Insert(slices.Clone(x.Remedy.Steps), min(len(x.Remedy.Steps), 1), c.programName()+" itself advises: "+said)
		return
	}
}

// adviceOf is what the lines of an explanation advise.
func (c *view) adviceOf(x *Explanation) string {
	for _, st := range c.Statements() {
		if slices.ContainsFunc(x.Evidence, func(q statement.Evidence) bool { return q.Line > 0 && q.Line == st.Line }) {
			if said := ownAdvice(st.Text); said != "" {
				return said
			}
		}
	}
	return ""
}

// Advised is what the last refusal advises, where no cause is found.
func Advised(e *account.Case) []string {
	for _, st := range slices.Backward(e.Statements()) {
		if said := ownAdvice(st.Text); said != "" && (st.Refused || st.Faint) {
			return []string{newView(e).programName() + " itself advises: " + said}
		}
	}
	return nil
}
