package category

// The peak in words.

import (
	"fmt"
	"strings"

	"gpumem/internal/report"
	"gpumem/size"
)

const (
	// leastPart is the least part of the peak that is told apart, of a hundred, and
	// leastLine the least of a category that a line is named for.
	leastPart, leastLine = 1, 10
	linesNamed           = 3
)

// Text returns what the memory at the peak is for, in one sentence: "activations 9.10 GiB
// (65 %; forward (block.py:39) 4.20 GiB, ...), parameters 1.60 GiB (11 %)". Of what is not sure
// by half it says "probably".
func (p *Peak) Text() string {
	if len(p.Parts) == 1 && p.Parts[0].Category == Unknown {
		return p.Parts[0].lines()
	}
	var list []string
	var rest uint64
	for _, part := range p.Parts {
		if part.Bytes*100 < leastPart*p.Bytes && len(p.Parts) > 1 {
			rest += part.Bytes
			continue
		}
		list = append(list, part.text(p.Bytes))
	}
	if rest > 0 {
		list = append(list, "others "+size.Format(rest))
	}
	return strings.Join(list, ", ")
}

// text returns a part in words.
func (part *Part) text(all uint64) string {
	probably := ""
	if part.Category != Unknown && part.Category != Kept && 2*part.Sure < part.Bytes {
		probably = "probably "
	}
	text := fmt.Sprintf("%s%s %s (%s", probably, part.Category, size.Format(part.Bytes), report.Part(part.Bytes, all))
	if lines := part.lines(); lines != "" {
		text += "; " + lines
	}
	return text + ")"
}

// lines returns the largest lines of a part, and what the others have.
func (part *Part) lines() string {
	var lines []string
	bytes, blocks := part.Bytes, part.Blocks
	for _, l := range part.Lines {
		if len(lines) == linesNamed || l.Bytes*100 < leastLine*part.Bytes {
			break
		}
		lines = append(lines, l.text())
		bytes, blocks = bytes-l.Bytes, blocks-l.Blocks
	}
	if len(lines) > 0 && bytes > 0 {
		other := "others"
		if blocks == 1 {
			other = "other"
		}
		lines = append(lines, fmt.Sprintf("and %s in %s %s", size.Format(bytes), report.Count(blocks), other))
	}
	return strings.Join(lines, ", ")
}

// text returns a line with its memory. Of blocks without a line it says how many there are.
func (l *Line) text() string {
	if of, ok := strings.CutPrefix(l.Where, blocksOf); ok {
		return fmt.Sprintf("%s of %s", report.Counted(l.Blocks, "block"), of)
	}
	return fmt.Sprintf("%s %s", short(l.Where), size.Format(l.Bytes))
}

// short returns a frame of Python as "model.py:12", for the function is clear from it, and any
// other as it is.
func short(frame string) string {
	if _, file, ok := strings.Cut(frame, " ("); ok && strings.HasSuffix(file, ")") && strings.Contains(file, ".py:") {
		return strings.TrimSuffix(file, ")")
	}
	return frame
}
