package doctor

// Where the memory is: the answer to a log, or a machine, without a failure.

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/inventory"
	"gpumem/internal/report"
	"gpumem/size"
)

// Account is where the memory is.
type Account = inventory.Account

// account adds where the memory is. That is the verdict if there was no failure: all that speaks
// of one is within the lines that the account is from, such as a count of refusals.
func (d *Diagnosis) account(e *account.Case) {
	found := e.Inventory.Account(e.State())
	if found == nil {
		return
	}
	// A statement begins a line earlier where a table looks like one that was wrapped.
	read := func(line int) bool { return e.Inventory.Read(line) || e.Inventory.Read(line+1) }
	failed := len(d.Causes) > 0 && e.Inventory.Refused() ||
		slices.ContainsFunc(e.Failed, func(r *account.Refusal) bool { return !read(r.St.Line) }) ||
		slices.ContainsFunc(d.Causes, func(c Cause) bool {
			return slices.ContainsFunc(c.Evidence, func(q Evidence) bool { return q.Line > 0 && !read(q.Line) })
		})
	failed = failed || anError.MatchString(e.End) || e.LastError != nil && len(e.Failed) == 0 && !read(e.LastError.Line)
	silent := len(d.Causes) == 0 && len(e.Failed) == 0 && (d.Verdict != VerdictUnknown || !slices.ContainsFunc(d.Certain, isQuiet))
	switch {
	case e.Binary() || failed || silent:
		if len(found.Rows) > 1 {
			d.Account = found
		}
	default:
		*d = Diagnosis{Verdict: VerdictAccount, Account: found}
	}
}

// isQuiet reports whether a sentence says that nothing speaks of a failure.
func isQuiet(certain string) bool { return certain == noRefusal || certain == noLog }

// anError is the last line of a program that failed for any reason.
var anError = regexp.MustCompile(`^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b|(?i)^(?:fatal|segmentation fault|aborted|killed)\b`)

// barWidth is the length of a bar on a screen that is wide enough.
const barWidth = 66

// marks are those of the parts in a bar, in their order; what is free is a dot.
const marks = "#=+o%x*~-"

// inventory is the answer that says where the memory is: a bar and a table for each subject. Where
// that is more than a screen, the last ones have a line each.
func (a *text) inventory() {
	head := "No failure of memory. Where the memory is:"
	if a.Log == "" {
		head = "Where the memory is:"
	}
	a.Line("%s", head)
	below := text{Text: report.Text{Width: a.Width}}
	below.list("What is odd", a.Account.Odd, 4)
	below.list("What would return memory", a.Account.Returns, 2)
	below.list("Also", a.Account.Notes, 2)
	below.list("Not told", a.Account.NotTold, 1)
	room := screenLines - 1 - len(below.lines())
	if len(a.Settings) > 0 {
		room -= 2 + 2*min(len(a.Settings), mostSettings)
	}
	for _, line := range a.subjects(room) {
		a.Raw(strings.TrimSuffix(line, "\n"))
	}
	for _, line := range below.lines() {
		a.Raw(strings.TrimSuffix(line, "\n"))
	}
}

// lines are what was written.
func (a *text) lines() []string { return slices.Collect(strings.Lines(a.String())) }

// subjects returns the rows, at most room lines if that is possible at all: the first subjects with a
// table each, and the others with a line each.
func (a *text) subjects(room int) (lines []string) {
	var long, short [][]string
	for rows := a.Account.Rows; len(rows) > 0; {
		n := slices.IndexFunc(rows, func(r inventory.Row) bool { return r.Subject != rows[0].Subject })
		if n < 0 {
			n = len(rows)
		}
		for _, form := range []struct {
			all   *[][]string
			write func(*text, []inventory.Row)
		}{{&long, (*text).subject}, {&short, (*text).inOne}} {
			t := text{Text: report.Text{Width: a.Width}, Answer: a.Answer}
			form.write(&t, rows[:n])
			*form.all = append(*form.all, t.lines())
		}
		rows = rows[n:]
	}
	count := func(lists [][]string) int { return len(slices.Concat(lists...)) }
	whole := len(long)
	for whole > 0 && count(long[:whole])+count(short[whole:])+1 > room {
		whole--
	}
	lines = slices.Concat(long[:whole]...)
	if whole == len(long) {
		return lines
	}
	lines = append(lines, "\n")
	for i, s := range short[whole:] {
		if left := len(short) - whole - i; len(lines)+len(s) > room && left > 1 {
			return append(lines, fmt.Sprintf("  and %d more; --json has all\n", left))
		}
		lines = append(lines, s...)
	}
	return lines
}

// inOne writes a subject without a table.
func (a *text) inOne(rows []inventory.Row) {
	var words []string
	title := rows[0].Subject
	for _, r := range rows {
		if r.Kind == inventory.Total {
			title += ", " + size.Format(r.Bytes) + " " + r.What
		} else {
			words = append(words, r.What+" "+size.Format(r.Bytes))
		}
	}
	from := a.from(rows[0])
	if from != "" {
		from = " (" + from + ")"
	}
	a.Line("  %s: %s%s", title, strings.Join(words, "; "), from)
}

// from names the place of a figure; "" where all are of the machine.
func (a *text) from(r inventory.Row) string {
	switch {
	case r.From.Line > 0:
		return fmt.Sprintf("line %d", r.From.Line)
	case a.Log == "":
		return ""
	}
	return "the machine"
}

// list is a section of some sentences.
func (a *text) list(title string, sentences []string, most int) {
	a.Section(title)
	a.steps(sentences[:min(len(sentences), most)])
}

// subject is a table, with a bar if the total is known: without one the shares would be those of what
// happens to be known.
func (a *text) subject(rows []inventory.Row) {
	title := rows[0].Subject
	var whole, sum uint64
	var parts []inventory.Row
	for _, r := range rows {
		switch r.Kind {
		case inventory.Part:
			parts = append(parts, r)
			sum = size.Add(sum, r.Bytes)
		case inventory.Total:
			title += ": " + size.Format(r.Bytes) + ", " + r.What
			whole = r.Bytes
		}
	}
	a.Section(report.Fold(title, a.Width))
	mark := map[string]string{}
	for _, r := range parts {
		m := "."
		if !strings.Contains(r.What, "free") || strings.HasPrefix(r.What, "freed") {
			m = marks[min(len(mark), len(marks)-1):][:1]
		}
		mark[r.What] = m
	}
	if whole = max(whole, sum); len(parts) > 1 && whole > 0 && title != rows[0].Subject {
		a.bar(parts, mark, whole)
	} else {
		whole = 0
	}
	a.table(rows, len(parts) > 0, mark, whole)
}

// bar draws the parts of a whole.
func (a *text) bar(parts []inventory.Row, mark map[string]string, whole uint64) {
	width := max(min(barWidth, a.Width-4), 0)
	var bar strings.Builder
	var sum uint64
	for _, r := range parts {
		sum = size.Add(sum, r.Bytes)
		for float64(bar.Len())+.5 < float64(sum)/float64(whole)*float64(width) {
			bar.WriteString(mark[r.What])
		}
	}
	a.Raw(fmt.Sprintf("  [%-*s]", width, bar.String()))
}

// table writes the rows of a subject; a whole of 0 is unknown. On a narrow screen each row is a sentence.
func (a *text) table(rows []inventory.Row, titled bool, mark map[string]string, whole uint64) {
	tab := report.NewTable("", "", ">", ">", "")
	var sentences []string
	for _, r := range rows {
		if r.Kind == inventory.Total && titled {
			continue
		}
		share, amount := "", size.Format(r.Bytes)
		if r.Kind == inventory.Part && whole > 0 {
			share = report.Part(r.Bytes, whole)
		}
		tab.Row(mark[r.What], r.What, amount, share, a.from(r))
		sentences = append(sentences, fmt.Sprintf("  %1s %s: %s", mark[r.What], r.What,
			strings.Join(slices.DeleteFunc([]string{amount, share, a.from(r)},
				func(s string) bool { return s == "" }), ", ")))
	}
	var lines strings.Builder
	_, _ = tab.WriteTo(&lines)                       // into memory
	_, table, _ := strings.Cut(lines.String(), "\n") // no titles
	wide := false
	for line := range strings.Lines(table) {
		wide = wide || utf8.RuneCountInString(strings.TrimRight(line, " \n"))+2 > a.Width
	}
	if wide {
		for _, s := range sentences {
			a.Line("%s", s)
		}
		return
	}
	for line := range strings.Lines(table) {
		a.Raw("  " + strings.TrimRight(line, " \n"))
	}
}
