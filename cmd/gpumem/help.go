// Help, in lines that fit the screen. The texts of most commands are files of their names in
// the folder help: a description, a line "Examples:", and the examples.

package main

import (
	"embed"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpumem/report"
	"gpumem/trace/formats"
)

//go:embed help/*.txt
var helpTexts embed.FS

// describe gives a command the texts of its file, if it has one.
func describe(cmd *cobra.Command) {
	text, err := helpTexts.ReadFile("help/" + cmd.Name() + ".txt")
	if err != nil {
		return
	}
	var formatList []string
	for _, x := range formats.All() {
		formatList = append(formatList, fmt.Sprintf("  %-10s %s", x.Name, x.What))
	}
	filled := strings.NewReplacer("{formats}", strings.Join(formatList, "\n"), "{frameworks}", strings.Join(knownFrameworks(), ", ")).Replace(string(text))
	cmd.Long, cmd.Example, _ = strings.Cut(strings.TrimSuffix(filled, "\n"), "\n\nExamples:\n")
}

// formatHelp gives all commands below root their help, and --version what the command
// version prints.
func formatHelp(root *cobra.Command) {
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		_, _ = io.WriteString(cmd.OutOrStdout(), helpText(cmd, textWidth))
	})
	root.SetVersionTemplate("{{.Version}}\n")
}

// helpText returns the help of a command in lines of at most width characters, but for words
// that are longer.
func helpText(cmd *cobra.Command, width int) string {
	var b strings.Builder
	about := cmd.Long
	if about == "" {
		about = cmd.Short
	}
	b.WriteString(paragraphs(about, width) + "\n\nUsage:\n")
	if cmd.HasAvailableSubCommands() {
		b.WriteString("  " + cmd.CommandPath() + " COMMAND\n")
	} else {
		b.WriteString("  " + cmd.UseLine() + "\n")
	}
	b.WriteString("\nExamples:\n")
	for line := range strings.SplitSeq(cmd.Example, "\n") {
		b.WriteString(strings.ReplaceAll(report.Wrap(line, width-2), "\n", " \\\n") + "\n") // as a shell reads it
	}
	var commands, flags [][2]string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() || c.Name() == "help" {
			commands = append(commands, [2]string{"  " + c.Name(), c.Short})
		}
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		head, usage := flagHelp(f)
		if !strings.HasPrefix(head, "-"+f.Shorthand+",") {
			head = "    " + head
		}
		flags = append(flags, [2]string{"  " + head, usage})
	})
	if len(commands) > 0 {
		b.WriteString("\nCommands:\n" + columns(commands, width))
	}
	b.WriteString("\nFlags:\n" + columns(flags, width))
	if len(commands) > 0 {
		b.WriteString("\n" + report.Wrap(cmd.CommandPath()+" COMMAND --help says more about a command.", width) + "\n")
	}
	return b.String()
}

// flagHelp returns how a flag is written and what it does.
func flagHelp(f *pflag.Flag) (head, usage string) {
	value, usage := pflag.UnquoteUsage(f)
	head = "--" + f.Name
	switch {
	case f.NoOptDefVal != "" && value != "":
		head += "[=" + value + "]"
	case value != "":
		head += " " + value
	}
	if f.Shorthand != "" {
		head = "-" + f.Shorthand + ", " + head
	}
	if !slices.Contains([]string{"", "0", "0s", "false", "[]"}, f.DefValue) {
		usage += fmt.Sprintf(" (default %s)", f.DefValue)
	}
	return head, usage
}

// columns writes rows of a head and a text, each text broken in its column; below its
// head where the column would be too narrow.
func columns(rows [][2]string, width int) string {
	const least = 28 // characters in the column
	left := 0
	for _, r := range rows {
		left = max(left, len(r[0])+2)
	}
	below := width-left < least
	if below {
		left = 10
	}
	var b strings.Builder
	for _, r := range rows {
		// Wrap indents the lines after the first by two more: the first has two letters in
		// front, which go.
		text := report.Wrap(strings.Repeat(" ", left-2)+"--"+r[1], width)[left:]
		if below {
			fmt.Fprintf(&b, "%s\n%*s%s\n", r[0], left, "", text)
		} else {
			fmt.Fprintf(&b, "%-*s%s\n", left, r[0], text)
		}
	}
	return b.String()
}

// paragraphs joins the lines of each paragraph and breaks it at width. Lines that begin
// with a blank are lists and keep their breaks.
func paragraphs(text string, width int) string {
	var out, words []string
	end := func() {
		if len(words) > 0 {
			out = append(out, strings.ReplaceAll(report.Wrap(strings.Join(words, " "), width), "\n  ", "\n"))
			words = nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
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
