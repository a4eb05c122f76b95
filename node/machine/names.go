// Names of programs, for people.

package machine

import (
	"cmp"
	"path"
	"strings"
)

// CommandLine returns the program's command in one line, without the folder of its
// first word; the kernel's name in brackets, as ps has it, for one that shows none; and
// "no program yet" for a lease of containers without one; and "unknown" for a process that
// is unknown.
func (p *Program) CommandLine() string {
	switch {
	case len(p.Command) > 0:
		return CommandLine(p.Command)
	case p.Started != nil:
		return "[" + p.Name + "]"
	case p.Unknown == "" && p.Lease.Where() != "":
		return "no program yet"
	}
	return "unknown"
}

// CommandLine returns a command in one line, without the folder of its first word.
func CommandLine(words []string) string {
	if len(words) == 0 {
		return ""
	}
	first := words[0]
	if i := strings.LastIndexByte(first, '/'); i >= 0 && i+1 < len(first) && !strings.Contains(first, " ") {
		first = first[i+1:]
	}
	return strings.Join(append([]string{first}, words[1:]...), " ")
}

// Title returns the program's name in a word: the script or the module that an
// interpreter of Python runs, else the first word of its command.
func (p *Program) Title() string {
	if len(p.Command) == 0 {
		return cmp.Or(p.Name, "unknown")
	}
	first, _, _ := strings.Cut(CommandLine(p.Command[:1]), " ") // a title that the process has set has blanks
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
