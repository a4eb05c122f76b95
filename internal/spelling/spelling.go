// Package spelling finds the name that a misspelt one was meant to be.
package spelling

import (
	"fmt"
	"strings"
)

// DidYouMean is ` (did you mean "x"?)` for the candidate nearest to word.
func DidYouMean(word string, candidates []string) string {
	if best := Nearest(word, candidates); best != "" {
		return fmt.Sprintf(" (did you mean %q?)", best)
	}
	return ""
}

// Nearest is the candidate that is nearest to word, if that is within two
// edits and at least half of it is as in word; else it is empty.
func Nearest(word string, candidates []string) string {
	best, bestEdits := "", 3
	for _, c := range candidates {
		if d := Distance(strings.ToLower(word), c); d < bestEdits && d <= len(c)/2 {
			best, bestEdits = c, d
		}
	}
	return best
}

// Distance is the Levenshtein distance of a and b in bytes, or 3 if it is more than
// two.
func Distance(a, b string) int {
	if len(a) > len(b)+2 || len(b) > len(a)+2 {
		return 3
	}
	var room [64]int
	row := room[:] // distances of a[:i] to each prefix of b
	if len(b) >= len(room) {
		row = make([]int, len(b)+1)
	}
	row = row[:len(b)+1]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal, least := row[0], i+1
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
			least = min(least, row[j+1])
		}
		if least > 2 { // it only grows
			return 3
		}
	}
	return row[len(b)]
}
