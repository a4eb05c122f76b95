package formats

// What is said of files that are no recordings. The pool library links what reads recordings, and
// not this.

import (
	"bytes"
	"fmt"
	"strings"

	"gpumem/internal/filekind"
	"gpumem/internal/input"
	"gpumem/internal/report"
	"gpumem/record/trace"
)

// refusing returns a list of formats that refuses other files by what they are.
func refusing(list trace.Formats) trace.Formats {
	list[0].Refuses = refuse
	return list
}

// refuse returns what content is that is no recording, and what to do with it.
func refuse(file string, head []byte) string {
	if k, ok := filekind.Of(file, head); ok {
		return "this is no recording; it is " + k.What + strings.ReplaceAll(nextOf(k), "FILE", report.ShellQuote(file))
	}
	if list.Recognise(head) != "" {
		return ""
	}
	line, n := input.FirstLine(head)
	if n == 0 || !input.IsPrintable(line) {
		return ""
	}
	if bytes.Contains(line, []byte("memory.used")) || bytes.Contains(line, []byte("memory.free")) {
		return fmt.Sprintf("readings of nvidia-smi, and no recording; gpumem doctor %s shows their peak and how they rise", report.ShellQuote(file))
	}
	return ""
}

// nextOf says what to do with a file that is no recording, behind what it is.
func nextOf(k filekind.Kind) string {
	switch k.Group {
	case filekind.Archive:
		return "; unpack it and name the recording in it"
	case filekind.Packed:
		return "; unpack it: " + k.Tool + " | gpumem replay -"
	case filekind.Model:
		return "; gpumem reads no models: gpumem fit -- COMMAND finds what a program needs with it, " +
			"and torch.cuda.memory._dump_snapshot writes a snapshot of PyTorch's memory"
	case filekind.Profile:
		return "; " + k.Next
	}
	return ""
}
