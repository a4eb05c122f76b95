package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpumem/report"
)

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
