// Command generate makes the lists that the libraries of this wing are built from.
//
//	generate front ARCH NAMES OUT C...
//
// makes what a library needs to stand in front of another: for each name in a list a jump to
// the other library's function, but for those that C files of the library define; the table of
// names; and the linker's list of exported names. ARCH is GOARCH. Of the C files the functions
// that begin with "API name(" are served. OUT gets forward.S, names.c and exports.map.
//
//	generate sim VERSIONS OUT
//
// makes names.h of the simulated driver: its functions with their names and versions.
//
//	generate standin NAMES LIBRARY VERSION OUT GLOB...
//
// makes list.h, the functions of a library that stands beside the simulated driver, and
// version.map, which exports what a GLOB matches under the name of a VERSION, which may be
// empty. A line of NAMES is a library and a function, behind which may stand the places of arguments by
// which it gives a number, or a function alone.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The jump to entry i of gm_table.
var jumps = map[string]string{
	"amd64": "\tjmp *gm_table+%[1]d(%%rip)\n",
	"arm64": "\tadrp x16, gm_table+%[1]d\n\tldr x16, [x16, #:lo12:gm_table+%[1]d]\n\tbr x16\n",
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 5 && args[0] == "front":
		return front(args[1:])
	case len(args) == 3 && args[0] == "sim":
		return sim(args[1], args[2])
	case len(args) >= 6 && args[0] == "standin":
		return standin(args[1:])
	}
	return errors.New("want front, sim or standin with their arguments, as its source has them")
}

func front(args []string) error {
	arch, list, out := args[0], args[1], args[2]
	jump := jumps[arch]
	if jump == "" {
		return fmt.Errorf("%s: no such architecture; there are amd64 and arm64", arch)
	}
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	served, err := defined(args[3:])
	if err != nil {
		return err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if name := strings.TrimSpace(line); name != "" && name[0] != '#' && !slices.Contains(served, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)

	var asm, table, exports strings.Builder
	asm.WriteString("// All functions that are not served: a jump each.\n\t.text\n")
	for i, n := range names {
		fmt.Fprintf(&asm, "\t.globl %[1]s\n\t.type %[1]s,%%function\n%[1]s:\n", n)
		fmt.Fprintf(&asm, jump, 8*i)
		fmt.Fprintf(&asm, "\t.size %[1]s,.-%[1]s\n", n)
	}
	fmt.Fprintf(&asm, "\t.bss\n\t.globl gm_table\n\t.hidden gm_table\n\t.balign 8\ngm_table:\n\t.skip %d\n", 8*len(names))
	asm.WriteString("\t.section .note.GNU-stack,\"\",%progbits\n")
	table.WriteString("#define HIDDEN __attribute__((visibility(\"hidden\")))\n")
	fmt.Fprintf(&table, "HIDDEN const int gm_count = %d;\nHIDDEN const char *const gm_names[] = {\n", len(names))
	for _, n := range names {
		fmt.Fprintf(&table, "  %q,\n", n)
	}
	table.WriteString("};\n")
	fmt.Fprintf(&exports, "{ global:\n  %s;\nlocal: *; };\n", strings.Join(append(names, served...), ";\n  "))
	return write(out, map[string]string{"forward.S": asm.String(), "names.c": table.String(), "exports.map": exports.String()})
}

// write writes files into a folder.
func write(folder string, files map[string]string) error {
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// sim makes names.h of lines "FUNCTION NAME VERSION".
func sim(list, out string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("#define SIM_NAMES")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 {
			fmt.Fprintf(&b, " \\\n  NAME(%s)", strings.Join(f, ", "))
		}
	}
	return write(out, map[string]string{"names.h": b.String() + "\n"})
}

// hasSize are the functions that tell the size of a workspace, for which noop.c has another answer.
// Those whose arguments are known have the numbers of those in names.txt.
var hasSize = regexp.MustCompile(`^cusolver.*_bufferSize`)

// output is the place of an argument, from 0, by which a function gives an int (i) or 64 bits (q).
// Arguments that are floating-point numbers are not counted.
var output = regexp.MustCompile(`\b([0-9]+)([iq])\b`)

func standin(args []string) error {
	list, library, version, out := args[0], args[1], args[2], args[3]
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("#define NAMES")
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 1 {
			f = []string{library, f[0]}
		}
		if len(f) == 0 || f[0] != library {
			continue
		}
		kind, name := "NAME", f[1]
		switch {
		case len(f) > 2:
			kind, name = "GIVES", name+", "+output.ReplaceAllString(strings.Join(f[2:], " "), "give_$2(a$1);")
		case hasSize.MatchString(name):
			kind = "SIZE"
		}
		fmt.Fprintf(&b, " \\\n  %s(%s)", kind, name)
	}
	exports := fmt.Sprintf("%s { global:\n  %s;\n  local: *; };\n", version, strings.Join(args[4:], ";\n  "))
	return write(out, map[string]string{"list.h": b.String() + "\n", "version.map": exports})
}

var definition = regexp.MustCompile(`(?m)^API (\w+)\(`)

// defined returns the names that C files define for export.
func defined(files []string) ([]string, error) {
	var names []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for _, m := range definition.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
