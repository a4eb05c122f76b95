package screen

import "gpumem/node/machine"

// What tests see.
var (
	Cells      = cells
	UTF8Locale = utf8Locale
	NewModel   = newModel
	Frame      = drawFrame
)

// How a screen looks, and the terminals.
type (
	View    = screenView
	Palette = palette
)

const (
	NoColours  = noColours
	Colours16  = colours16
	Colours256 = colours256
)

// Looked is the message with a snapshot.
var Looked = func(m any) bool { _, ok := m.(seen); return ok }

// Seen returns the message with a snapshot.
func Seen(s *machine.Snapshot) any { return seen{s, nil} }

// How returns how the model looks at its snapshot.
func (m *model) How() *screenView { return &m.view }
