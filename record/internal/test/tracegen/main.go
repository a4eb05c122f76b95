// Command tracegen makes the traces that this project ships in examples/.
//
//	go run ./record/internal/test/tracegen          # from the root: writes the files
//	go run ./record/internal/test/tracegen -check   # reports whether they are what it would write
//
// Each trace imitates one kind of program, so that one claim about GPU memory
// can be seen in a table: traces.go says which. They are made up, not
// recorded: a recording of a real run would be somebody's, and too large.
//
// A trace is the same on every machine and with every Go release: the numbers
// come from a generator with a fixed seed and from integer arithmetic only
// (floating point may be fused on one processor and not on another). The gzip
// around it may differ between Go releases, so what is compared is the text.
package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("dir", "examples", "the folder of the traces")
	check := flag.Bool("check", false, "write nothing; fail if a file is not what would be written")
	flag.Parse()
	do := write
	if *check {
		do = compare
	}
	for _, t := range traces {
		path := filepath.Join(*dir, t.name+".txt.gz")
		n, err := do(path, t.text())
		if err != nil {
			fmt.Fprintln(os.Stderr, "tracegen:", err)
			os.Exit(1)
		}
		fmt.Printf("%-36s %3d KiB\n", path, (n+1023)/1024)
	}
}

// write puts text into a gzip file and says how long that is.
func write(path string, text []byte) (int, error) {
	var z bytes.Buffer
	w, err := gzip.NewWriterLevel(&z, gzip.BestCompression)
	if err != nil {
		return 0, err
	}
	if _, err := w.Write(text); err != nil {
		return 0, err
	}
	if err := w.Close(); err != nil {
		return 0, err
	}
	return z.Len(), os.WriteFile(path, z.Bytes(), 0o644)
}

// compare says how long the file is, or that its text is another one.
func compare(path string, text []byte) (int, error) {
	z, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	r, err := gzip.NewReader(bytes.NewReader(z))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	got, err := io.ReadAll(r)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if !bytes.Equal(got, text) {
		return 0, fmt.Errorf("%s is not what tracegen makes; run it without -check to write it anew", path)
	}
	return len(z), nil
}
