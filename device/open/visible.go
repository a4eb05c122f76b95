// CUDA_VISIBLE_DEVICES, as CUDA's driver reads it.

package open

import (
	"slices"
	"strconv"
	"strings"
)

// VisibleVar names the GPUs that a program sees, in the order in which it counts them. It hides none
// from NVML.
const VisibleVar = "CUDA_VISIBLE_DEVICES"

// Visible returns the numbers of the GPUs that a value of VisibleVar lets through, in its order. uuids are
// those of all GPUs, as [UUID.String] writes them. The list is of numbers or of UUIDs, whichever its first word
// is, and ends at the first word that names no GPU; of a UUID as much is enough as no other begins with. A GPU
// that stands there twice hides all. What follows the digits of a number counts for nothing.
func Visible(value string, uuids []string) (numbers []int) {
	const ofUUID = "GPU-"
	byUUID := strings.HasPrefix(strings.TrimSpace(value), ofUUID)
	for word := range strings.SplitSeq(value, ",") {
		word = strings.TrimSpace(word)
		n := -1
		switch {
		case byUUID != strings.HasPrefix(word, ofUUID):
		case byUUID:
			n = onlyWithPrefix(uuids, word)
		default:
			n = leadingNumber(word)
		}
		if n < 0 || n >= len(uuids) {
			return numbers
		}
		if slices.Contains(numbers, n) {
			return nil
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// Visible returns the simulated GPUs of s that a value of VisibleVar lets through, in its order.
func (s Spec) Visible(value string) ([]Listed, error) {
	all, err := s.Status()
	if err != nil {
		return nil, err
	}
	uuids := make([]string, len(all))
	for i, d := range all {
		uuids[i] = s.UUID(d.Ordinal).String()
	}
	var list []Listed
	for _, n := range Visible(value, uuids) {
		list = append(list, all[n])
	}
	return list, nil
}

// onlyWithPrefix returns the index of the only text that begins with prefix, else -1.
func onlyWithPrefix(list []string, prefix string) int {
	found := -1
	for i, s := range list {
		if !strings.HasPrefix(s, prefix) {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = i
	}
	return found
}

// leadingNumber returns the number with which a word begins, as C's strtol reads it; -1 if there is none.
func leadingNumber(word string) int {
	digits := strings.TrimPrefix(word, "+")
	digits = digits[:len(digits)-len(strings.TrimLeft(digits, "0123456789"))]
	n, err := strconv.Atoi(digits)
	if err != nil {
		return -1
	}
	return n
}
