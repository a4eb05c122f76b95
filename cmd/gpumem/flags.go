package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gpumem/internal/spelling"
)

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
		"bool": "true or false", "int": "a whole number", "float64": "a number, such as 0.5 or 3e12", "duration": "a duration, such as 5s or 10m",
	}[bad.GetFlag().Value.Type()]
	if want == "" {
		return err
	}
	return fmt.Errorf("invalid argument %q for \"--%s\" flag: want %s", bad.GetValue(), bad.GetFlag().Name, want)
}

// joinWait writes --wait DURATION of gpumem run as one word. --wait may stand alone, so
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
		case flag.Name == "wait" && i+1 < len(args) && isDuration(args[i+1]):
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

// sameFile reports whether two paths lead to one regular file, or to one that is to be made.
// The first may be read: - is standard input.
func sameFile(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	one, err := os.Stat(a)
	if a == "-" {
		one, err = os.Stdin.Stat()
	}
	if err != nil || !one.Mode().IsRegular() {
		return false
	}
	two, err := os.Stat(b)
	return err == nil && os.SameFile(one, two)
}

// An output is a flag with the file that it names to be written; "" if it names none.
type output struct{ flag, path string }

// checkOutputs returns an error if a file clearly cannot be made, or is the input, which is
// of that kind, or the file of another flag. It is called before work that may take long.
func checkOutputs(input, kind string, files ...output) error {
	for i, x := range files {
		if x.path == "" {
			continue
		}
		if err := checkMakable(x.flag, x.path); err != nil {
			return err
		}
		if sameFile(input, x.path) {
			return fmt.Errorf("%s %s: this is the %s itself; name another file", x.flag, x.path, kind)
		}
		for _, other := range files[:i] {
			if other.path != "" && sameFile(other.path, x.path) {
				return fmt.Errorf("%s %s: %s has the same file; name another", x.flag, x.path, other.flag)
			}
		}
	}
	return nil
}

// checkMakable returns an error if the file of a flag clearly cannot be made.
func checkMakable(flag, path string) error {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return fmt.Errorf("%s: %s: is a directory; name a file in it", flag, path)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("%s: %s: cannot be made: %w", flag, path, reason(err))
	}
	return nil
}

// reason returns an error of a file without its path, which the message has already.
func reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// writeWhole makes a file with what write writes. A regular file is replaced at the end,
// so it is never half written; a pipe or a device is written to.
func writeWhole(ctx context.Context, path string, write func(io.Writer) error) (err error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	at, flags := fmt.Sprintf("%s.%d.tmp", path, os.Getpid()), os.O_CREATE|os.O_EXCL
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		at, flags = path, 0
	}
	file, err := os.OpenFile(at, flags|os.O_WRONLY, 0o666)
	if err != nil {
		return fmt.Errorf("%s: cannot be made: %w", path, reason(err))
	}
	err = errors.Join(write(file), file.Close(), ctx.Err())
	if at == path {
		return err
	}
	if err == nil {
		err = os.Rename(at, path)
	}
	if err != nil {
		os.Remove(at)
	}
	return err
}
