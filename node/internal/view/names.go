// Package view says to people what a snapshot of a machine contains: names, parts and remarks.
package view

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"gpumem/node/internal/registry"
	"gpumem/node/machine"
)

// CommandLine returns a program's command in one line, without the folder of its
// first word; the kernel's name in brackets, as ps has it, for one that shows none; and
// "no program yet" for a lease of containers without one; and "unknown" for a process that
// is unknown.
func CommandLine(p *machine.Program) string {
	switch {
	case len(p.Command) > 0:
		return commandLine(p.Command)
	case p.Started != nil:
		return "[" + p.Name + "]"
	case p.Unknown == "" && Where(p.Lease) != "":
		return "no program yet"
	}
	return "unknown"
}

// commandLine returns a command in one line, without the folder of its first word.
func commandLine(words []string) string {
	if len(words) == 0 {
		return ""
	}
	first := words[0]
	if i := strings.LastIndexByte(first, '/'); i >= 0 && i+1 < len(first) && !strings.Contains(first, " ") {
		first = first[i+1:]
	}
	return strings.Join(append([]string{first}, words[1:]...), " ")
}

// Title returns a program's name in a word: the script or the module that an
// interpreter of Python runs, else the first word of its command.
func Title(p *machine.Program) string {
	if len(p.Command) == 0 {
		return cmp.Or(p.Name, "unknown")
	}
	first, _, _ := strings.Cut(commandLine(p.Command[:1]), " ") // a title that the process has set has blanks
	if !strings.HasPrefix(first, "python") {
		return first
	}
	for i, word := range p.Command[1:] {
		switch {
		case word == "-m" && i+2 < len(p.Command):
			return p.Command[i+2]
		case word == "-c":
			return first
		case !strings.HasPrefix(word, "-"):
			return path.Base(word)
		}
	}
	return first
}

// Where returns the first of a lease's containers and the number of the others, in
// words; "" if it is for none.
func Where(l *machine.Lease) string {
	if l == nil || len(l.Containers) == 0 {
		return ""
	}
	text := ContainerName(l.Containers[0])
	if n := len(l.Containers) + l.MoreContainers - 1; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// ContainerName returns NAMESPACE/POD/NAME, or the first digits of the ID without them.
func ContainerName(c machine.Container) string { return registry.Container(c).String() }
