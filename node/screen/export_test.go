package screen

import "gpumem/node/machine"

// What tests see.
var (
	Cells      = cells
	UTF8Locale = utf8Locale
	NewModel   = newModel
)

// Looked is the message with a snapshot.
var Looked = func(m any) bool { _, ok := m.(seen); return ok }

// Seen returns the message with a snapshot.
func Seen(s *machine.Snapshot) any { return seen{s, nil} }

// How returns how the model looks at its snapshot.
func (m *model) How() *View { return &m.view }
