// The answers to a question, with what they are about. Their JSON is that of gpumem explain.

package probe

import (
	"errors"
	"fmt"
	"strings"

	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

// Explained is what the framework makes of the environment.
type Explained struct {
	explain.Answer
	About
}

// Compared is what two releases make of it.
type Compared struct {
	explain.Comparison
	About
}

// Explain answers the question.
func (q *Question) Explain() (Explained, error) {
	a, err := explain.Environment(q.Env, q.As, q.On)
	return Explained{a, q.About}, err
}

// Compare answers the question for two releases, each a VERSION of the question's framework or
// FRAMEWORK[@VERSION]. Notes about them are added to the question's.
func (q *Question) Compare(a, b string) (Compared, error) {
	var answers [2]explain.Answer
	for i, word := range []string{a, b} {
		release, err := q.parseRelease(word)
		if err == nil {
			if note := release.Note(); note != "" {
				q.note("%s", note)
			}
			answers[i], err = explain.Environment(q.Env, release, q.On)
		}
		if err != nil {
			return Compared{}, fmt.Errorf("--diff: %w", err)
		}
	}
	return Compared{explain.Compare(answers[0], answers[1]), q.About}, nil
}

// parseRelease reads VERSION or FRAMEWORK[@VERSION]. "next" is a version, too.
func (q *Question) parseRelease(word string) (frameworks.Release, error) {
	if word == "" {
		return frameworks.Release{}, errors.New("a release is empty; want two, as in --diff 0.4.30 0.11.0")
	}
	if version := word == policy.Next.String() || word[0] >= '0' && word[0] <= '9'; version && !strings.Contains(word, "@") {
		word = q.As.Name + "@" + word
	}
	return frameworks.ParseRelease(word)
}
