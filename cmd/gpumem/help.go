// Help, in lines that fit the screen, and the manual pages. The texts of most commands are files of their names in
// the folder help: a description, a line "Examples:", and the examples.

package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpumem/internal/output"
	"gpumem/internal/report"
	"gpumem/record/formats"
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
	fill := strings.NewReplacer("{formats}", strings.Join(formatList, "\n"), "{frameworks}", strings.Join(knownFrameworks(), ", "))
	filled := fill.Replace(string(text))
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

func manualCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "manual DIR",
		Short:  "Write the manual pages and shell completions",
		Hidden: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("manual takes one DIR to write to")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManual(cmd.Context(), cmd.Root(), args[0])
		},
	}
}

// writeManual writes the pages and completions of root below dir.
func writeManual(ctx context.Context, root *cobra.Command, dir string) error {
	files := map[string]func(io.Writer) error{
		"completions/gpumem.bash": func(w io.Writer) error { return root.GenBashCompletionV2(w, true) },
		"completions/_gpumem":     root.GenZshCompletion,
		"completions/gpumem.fish": func(w io.Writer) error { return root.GenFishCompletion(w, true) },
		"completions/gpumem.ps1":  root.GenPowerShellCompletionWithDesc,
		"man1/gpumem.1":           func(w io.Writer) error { return writeManPage(w, root) },
	}
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() {
			files["man1/"+strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"] = func(w io.Writer) error { return writeManPage(w, cmd) }
		}
	}
	for _, sub := range []string{"man1", "completions"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			return fmt.Errorf("%s: cannot be made: %w", dir, output.Reason(err))
		}
	}
	for name, write := range files {
		if err := output.Write(ctx, filepath.Join(dir, name), write); err != nil {
			return err
		}
	}
	return nil
}

// roff escapes a line of text for man(7).
func roff(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`).Replace(line)
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	return line
}

// writeManPage writes a command's page as man(7) describes it.
func writeManPage(w io.Writer, cmd *cobra.Command) error {
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"gpumem %s\" \"User Commands\"\n", strings.ToUpper(roff(name)), strings.Fields(programVersion())[1])
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	b.WriteString(".SH DESCRIPTION\n")
	roffText(&b, cmd.Long)
	if sub := cmd.Commands(); len(sub) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, c := range sub {
			if c.IsAvailableCommand() {
				fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(c.CommandPath()), roff(c.Short))
			}
		}
	}
	b.WriteString(".SH OPTIONS\n")
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		head, usage := flagHelp(f)
		name, value, _ := strings.Cut(strings.TrimPrefix(head, "-"+f.Shorthand+", "), " ")
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR \\fI%s\\fR\n%s\n", roff(name), roff(value), roff(usage))
	})
	b.WriteString(".SH EXAMPLES\n")
	roffText(&b, cmd.Example)
	if cmd.HasParent() {
		b.WriteString(".SH SEE ALSO\n.BR gpumem (1)\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// roffText writes paragraphs; lines that begin with a blank keep their breaks.
func roffText(b *strings.Builder, text string) {
	list := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if in := strings.HasPrefix(line, " "); in != list {
			list = in
			b.WriteString(map[bool]string{true: ".PP\n.nf\n", false: ".fi\n"}[in])
		}
		if line == "" {
			b.WriteString(".PP\n")
			continue
		}
		b.WriteString(roff(line) + "\n")
	}
	if list {
		b.WriteString(".fi\n")
	}
}
