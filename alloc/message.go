package alloc

import "strings"

// Severity is how much a message matters, in the letters of Google's logging
// library, with which the original writes its own.
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

// String writes a record after the other, each begun by its severity and a
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

// Reporter is an Allocator that writes the original's report for a request that was
// refused.
type Reporter interface {
	Report(Request) Report
}
