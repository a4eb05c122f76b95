package main

import (
	"os"
	"strconv"

	"github.com/charmbracelet/x/term"

	"gpumem/report"
)

// The width of standard output, set by main before a command runs. Tests have what a
// pipe has.
var (
	// textWidth is where sentences are broken: at the screen's edge, but no further than
	// sentences are read with ease.
	textWidth = 80
	// screenWidth is where rows of tables are broken; 0 unless the output is a terminal.
	screenWidth = 0
)

// measureScreen sets the widths: those of $COLUMNS, else those of the terminal f, if it
// is one.
func measureScreen(f *os.File) {
	width, err := strconv.Atoi(os.Getenv("COLUMNS"))
	if err != nil && term.IsTerminal(f.Fd()) {
		width, _, err = term.GetSize(f.Fd())
	}
	if err == nil && width > 0 {
		screenWidth = max(width, 20)
		textWidth = min(screenWidth, 100)
	}
}

// fitScreen breaks a line that is as long as it is elsewhere.
func fitScreen(line string) string {
	if screenWidth == 0 {
		return line
	}
	return report.Wrap(line, screenWidth)
}
