package main

import (
	"os"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// formatHelp breaks help at the width of the screen, and prints the version as the
// command version does.
func formatHelp(root *cobra.Command) {
	cobra.AddTemplateFunc("flags", func(f *pflag.FlagSet) string { return f.FlagUsagesWrapped(textWidth) })
	cobra.AddTemplateFunc("paragraphs", func(text string) string { return paragraphs(text, textWidth) })
	usage := root.UsageTemplate()
	for _, set := range []string{".LocalFlags", ".InheritedFlags"} {
		usage = strings.ReplaceAll(usage, set+".FlagUsages", "flags "+set)
	}
	root.SetUsageTemplate(usage)
	root.SetHelpTemplate(strings.Replace(root.HelpTemplate(), "{{. | ", "{{. | paragraphs | ", 1))
	root.SetVersionTemplate("{{.Version}}\n")
}

// paragraphs joins the lines of each paragraph and breaks it at width. Lines that begin
// with a blank are lists and keep their breaks.
func paragraphs(text string, width int) string {
	var out []string
	var words []string
	end := func() {
		if len(words) > 0 {
			lines := strings.Split(report.Wrap(strings.Join(words, " "), width), "\n")
			words = nil
			for _, line := range lines {
				out = append(out, strings.TrimLeft(line, " "))
			}
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == ' ' {
			end()
			out = append(out, report.Wrap(line, width))
			continue
		}
		words = append(words, line)
	}
	end()
	return strings.Join(out, "\n")
}
