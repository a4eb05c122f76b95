package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func manualCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "manual DIR",
		Short: "Write the manual pages and shell completions",
		Long: `manual writes one manual page for each command to DIR/man1, and the completions
of bash, zsh, fish and PowerShell to DIR/completions.`,
		Example: "  gpumem manual ~/.local/share/man && man -M ~/.local/share/man gpumem-replay",
		Hidden:  true,
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
			return fmt.Errorf("%s: cannot be made: %w", dir, reason(err))
		}
	}
	for name, write := range files {
		if err := writeWhole(ctx, filepath.Join(dir, name), write); err != nil {
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
