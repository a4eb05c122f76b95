package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version is the release that a build without a tag leads to or comes after.
const version = "0.2.0"

// programVersion is the program's version in a line: the tag of the build or the version, the
// commit of a build from a checkout, the compiler and the system.
func programVersion() string {
	words := []string{"gpumem", version}
	if info, ok := debug.ReadBuildInfo(); ok {
		if tag, ok := strings.CutPrefix(info.Main.Version, "v"); ok && !strings.ContainsAny(tag, "-+") {
			words[1] = tag
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				words = append(words, s.Value[:12])
			}
		}
	}
	return strings.Join(append(words, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH), " ")
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  gpumem version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), programVersion())
			return err
		},
	}
}
