package alloc

import "strings"

// Severity is a message's severity, as the letter that Google's logging library prints,
// which the original uses.
type Severity byte

const (
	Info    Severity = 'I'
	Warning Severity = 'W'
	Error   Severity = 'E'
)

// Message is one record of a log. Text may have several lines.
type Message struct {
	Severity Severity
	Text     string
}

// Report is the records of one out-of-memory report, in order.
type Report []Message

// String returns the records one after the other, each begun by its severity and a
// blank.
func (r Report) String() string {
	var b strings.Builder
	for _, m := range r {
		b.WriteByte(byte(m.Severity))
		b.WriteByte(' ')
		b.WriteString(m.Text)
		b.WriteByte('\n')
	}
	return b.String()
}

// Reporter is an Allocator that can return the original's report for a request that was
// refused.
type Reporter interface {
	Report(Request) Report
}
