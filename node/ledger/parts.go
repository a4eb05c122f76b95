// Parts as text, for the environment of a program.

package ledger

import (
	"fmt"
	"strconv"
	"strings"
)

// FormatParts returns the parts of several ledgers as text, in the order of the ledgers:
// ID=BYTES, the identity in hexadecimal, with ',' between parts and ':' between ledgers.
func FormatParts(of [][]Part) string {
	var ledgers []string
	for _, parts := range of {
		var list []string
		for _, p := range parts {
			list = append(list, fmt.Sprintf("%x=%d", p.ID, p.Limit))
		}
		ledgers = append(ledgers, strings.Join(list, ","))
	}
	return strings.Join(ledgers, ":")
}

// ParseParts reads what FormatParts returns. The empty text is no ledger's.
func ParseParts(text string) (of [][]Part, err error) {
	if text == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(text, ":") {
		var parts []Part
		for p := range strings.SplitSeq(one, ",") {
			if one == "" {
				break
			}
			id, limit, _ := strings.Cut(p, "=")
			var part Part
			if part.ID, err = strconv.ParseUint(id, 16, 64); err == nil {
				part.Limit, err = strconv.ParseUint(limit, 10, 64)
			}
			if err != nil || part.ID == 0 {
				return nil, fmt.Errorf("part %q of a lease: want ID=BYTES", p)
			}
			parts = append(parts, part)
		}
		of = append(of, parts)
	}
	return of, nil
}
