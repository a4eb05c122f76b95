package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpumem/internal/spelling"
	"gpumem/size"
)

// A sizeValue is the value of a flag that is a number of bytes. What is no size is an error of
// checkFlags and not of Set: --help, a completion and a later value go before it.
type sizeValue struct {
	text string
	to   *uint64
	err  error
}

// addSize adds a flag that is a number of bytes. Its default is a text, too.
func addSize(fs *pflag.FlagSet, to *uint64, name, text, usage string) {
	v := &sizeValue{to: to}
	_ = v.Set(text) // a default is a size
	fs.Var(v, name, usage)
}

// Set sets the value.
func (v *sizeValue) Set(text string) error {
	v.text, v.err = text, nil
	if text != "" {
		*v.to, v.err = size.ParseFlag(text)
	}
	return nil
}

func (v *sizeValue) String() string { return v.text }

// Type returns the name of the type.
func (v *sizeValue) Type() string { return "size" }

// flagError says what a flag takes, instead of the words of the function that reads it,
// and which flag a misspelt one was meant to be.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := spelling.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			return fmt.Errorf("%w; did you mean --%s?", err, near)
		}
		return fmt.Errorf("%w; %s --help lists the flags", err, cmd.CommandPath())
	}
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	want := map[string]string{
		"bool": "true or false", "int": "a whole number", "uint64": "a whole number from 1", "float64": "a number, such as 0.5 or 3e12",
		"duration": "a duration, such as 5s or 10m",
	}[bad.GetFlag().Value.Type()]
	if want == "" {
		return err
	}
	return fmt.Errorf("invalid argument %q for \"--%s\" flag: want %s", bad.GetValue(), bad.GetFlag().Name, want)
}

// joinWait writes --wait DURATION and --turns DURATION of gpumem run as one word. They may stand alone, so
// that a flag's parser takes the next word for COMMAND.
func joinWait(root *cobra.Command, args []string) []string {
	if len(args) == 0 || args[0] != "run" {
		return args
	}
	cmd, _, err := root.Find(args[:1])
	if err != nil {
		return args
	}
	for i := 1; i < len(args) && strings.HasPrefix(args[i], "--") && args[i] != "--"; i++ {
		flag := cmd.Flags().Lookup(args[i][2:]) // nil with =VALUE
		switch {
		case flag == nil:
		case flag.NoOptDefVal == "": // its value follows
			i++
		case (flag.Name == "wait" || flag.Name == "turns") && i+1 < len(args) && isDuration(args[i+1]):
			joined := args[i] + "=" + args[i+1]
			args = slices.Replace(slices.Clone(args), i, i+2, joined)
		}
	}
	return args
}

// isDuration reports whether a word is meant as a duration, with its unit or without.
func isDuration(word string) bool {
	_, err := time.ParseDuration(word)
	return err == nil || word != "" && strings.Trim(word, "0123456789.") == ""
}
