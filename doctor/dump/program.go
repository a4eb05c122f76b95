package dump

// What XLA's compiler says of a program's buffers when it does not fit.

// A Program is a report of buffer assignment.
type Program struct{}

// Summary is the report on one screen: at most 40 lines of at most width bytes.
func (p *Program) Summary(width int) []string { return nil }
