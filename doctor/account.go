package doctor

// Where the memory is: the answer to a log, or a machine, without a failure.

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

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
	failed := len(d.Causes) > 0 && e.Inventory.Refused() || slices.ContainsFunc(e.Failed, func(r *account.Refusal) bool { return !read(r.St.Line) }) ||
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

// barWidth is the length of a bar.
const barWidth = 66

// marks are those of the parts in a bar, in their order; what is free is a dot.
const marks = "#=+o%x*~-"

// inventory is the answer that says where the memory is: a bar and a table for each subject, at
// most accountLines in all.
func (a *text) inventory() {
	head := "No failure of memory. Where the memory is:"
	if a.Log == "" {
		head = "Where the memory is:"
	}
	a.Line("%s", head)
	rows := a.Account.Rows
	room := 14
	for first := true; len(rows) > 0; first = false {
		n := slices.IndexFunc(rows, func(r inventory.Row) bool { return r.Subject != rows[0].Subject })
		if n < 0 {
			n = len(rows)
		}
		if room -= n + 2; room < 0 && !first {
			names := subjects(rows)
			a.Section("")
			a.Line("In the JSON only: %s", others(names))
			break
		}
		a.subject(rows[:n])
		rows = rows[n:]
	}
	a.list("What is odd", a.Account.Odd, 4)
	a.list("What would return memory", a.Account.Returns, 2)
	a.list("Also", a.Account.Notes, 2)
	a.list("Not told", a.Account.NotTold, 1)
}

// list is a section of some sentences.
func (a *text) list(title string, sentences []string, most int) {
	a.Section(title)
	a.steps(sentences[:min(len(sentences), most)])
}

// subjects are the names of rows, each once.
func subjects(rows []inventory.Row) (names []string) {
	for _, r := range rows {
		names = appendNew(names, r.Subject)
	}
	return names
}

// others names the first of some subjects.
func others(names []string) string {
	if len(names) > 2 {
		return fmt.Sprintf("%s and %d more", names[0], len(names)-1)
	}
	return strings.Join(names, "; ")
}

// subject is a bar and a table.
func (a *text) subject(rows []inventory.Row) {
	title, whole := rows[0].Subject, uint64(0)
	var parts []inventory.Row
	for _, r := range rows {
		if r.Kind == inventory.Part {
			parts = append(parts, r)
			whole = size.Add(whole, r.Bytes)
		}
		if r.Kind == inventory.Total {
			title += ": " + size.Format(r.Bytes) + ", " + r.What
			whole = max(whole, r.Bytes)
		}
	}
	a.Section(title)
	// A bar without the weights would be one of the rest.
	told := slices.ContainsFunc(rows, func(r inventory.Row) bool { return r.Kind == inventory.Total || strings.Contains(r.What, "weights") })
	var bar strings.Builder
	var sum uint64
	mark := map[string]string{}
	for _, r := range parts {
		m := "."
		if !strings.Contains(r.What, "free") || strings.HasPrefix(r.What, "freed") {
			m = marks[min(len(mark), len(marks)-1):][:1]
		}
		mark[r.What] = m
		sum = size.Add(sum, r.Bytes)
		for whole > 0 && float64(bar.Len())+.5 < float64(sum)/float64(whole)*barWidth {
			bar.WriteString(m)
		}
	}
	if len(parts) > 1 && whole > 0 && told {
		a.Raw(fmt.Sprintf("  [%-*s]", barWidth, bar.String()))
	}
	tab := report.NewTable("", "", ">", ">", "")
	for _, r := range rows {
		if r.Kind == inventory.Total && len(parts) > 0 {
			continue
		}
		share := ""
		if r.Kind == inventory.Part && len(parts) > 1 && told {
			share = report.Part(r.Bytes, whole)
		}
		from := "the state"
		if r.From.Line > 0 {
			from = fmt.Sprintf("line %d", r.From.Line)
		}
		tab.Row(mark[r.What], r.What, size.Format(r.Bytes), share, from)
	}
	var lines strings.Builder
	_, _ = tab.WriteTo(&lines)                       // into memory
	_, table, _ := strings.Cut(lines.String(), "\n") // no titles
	for line := range strings.Lines(table) {
		a.Raw(report.Fit("  "+strings.TrimRight(line, "\n"), a.Width))
	}
}
