// Package early has signals end a command from its start on as they end one that catches none,
// until os/signal is asked for them: see package unhandled. A command that imports it calls
// [Handled]. It imports next to nothing, so that it is initialized before what takes long.
package early

import "gpumem/internal/unhandled"

func init() { unhandled.Take() }

// Handled has Go's runtime handle the signals. It is called when os/signal has been asked for
// those that the process is to handle: without, they do not come there.
func Handled() { unhandled.Return() }
