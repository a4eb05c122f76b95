package remat

// What the words of the command line ask for, and what is wrong with a request.

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/size"
	"gpumem/xla/internal/mark"
)

// Check returns an error for numbers out of range, and for what the algorithm does not do. It names
// the flags of gpumem remat. Run checks its request; who reads a large module first checks before.
func (r *Request) Check() error {
	gap := r.Algorithm == "gap"
	switch {
	case !slices.Contains(Algorithms, r.Algorithm):
		return fmt.Errorf("--algorithm %q: want one of %s", r.Algorithm, strings.Join(Algorithms, ", "))
	case !(r.Rates.Bytes > 0 && r.Rates.Flops > 0):
		return errors.New("--bytes-per-second and --flops-per-second must be above 0")
	case !(r.HostSpeed >= 0 && r.HostSpeed <= math.MaxFloat32):
		return fmt.Errorf("--host-bytes-per-second %g: want 0 or more, such as 50e9", r.HostSpeed)
	case r.HostSpeed > 0 && r.Algorithm == "off":
		return errors.New("--host-bytes-per-second: off moves nothing; say --algorithm gap or xla")
	case r.Packed && !gap:
		return fmt.Errorf("--packed: %s plans for what lives at once; say --algorithm gap", r.Algorithm)
	case r.Collectives && !gap:
		return fmt.Errorf("--recompute-collectives: %s has fixed rules; say --algorithm gap", r.Algorithm)
	}
	return CheckTime(r.Search)
}

// CheckTime returns an error unless plans can take as long as limit.
func CheckTime(limit time.Duration) error {
	if limit < 0 {
		return fmt.Errorf("--time %s: want 0 or more", limit)
	}
	return nil
}

// SetLimit sets the limit to bytes, such as 12GiB, or to a part of what the module takes, such
// as 60%.
func (r *Request) SetLimit(words string) error {
	part, isPart := strings.CutSuffix(words, "%")
	if isPart {
		p, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(p > 0 && p <= 100) {
			return fmt.Errorf("--limit %q: want a part of the peak such as 60%%, at most 100%%", words)
		}
		r.Limit, r.LimitFrom = Percent(p), fmt.Sprintf("%v %% of what the module takes now", p)
		return nil
	}

	n, err := size.ParseFlag(words)
	if err != nil {
		return fmt.Errorf("--limit: %w; a part of the peak is written as 60%%", err)
	}
	r.Limit, r.LimitFrom = Bytes(n), "as requested"
	return nil
}

// SetMarks sets Marks to regular expressions, and Save to the policy with a name: nothing,
// everything, dots, dots_no_batch, or names=PATTERN.
func (r *Request) SetMarks(patterns []string, save string) (err error) {
	if r.Save, err = mark.PolicyNamed(save); err != nil {
		return fmt.Errorf("--save %s", notRegular(err))
	}
	for _, pattern := range patterns {
		re, err := regexp.Compile(pattern)
		if err != nil {
			return fmt.Errorf("--mark %s: %s", pattern, notRegular(err))
		}
		r.Marks = append(r.Marks, re)
	}
	return nil
}

// notRegular returns the text of an error, without the words of package regexp.
func notRegular(err error) string {
	return strings.Replace(err.Error(), "error parsing regexp", "not a regular expression", 1)
}
