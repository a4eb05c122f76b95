package load

// That reading takes memory and time in proportion to a message.

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

var errFull = errors.New("full")

// within holds up to a number of bytes.
func within(limit int64) func(int64) error {
	return func(n int64) error {
		if limit -= n; limit < 0 {
			return errFull
		}
		return nil
	}
}

func TestMemoryThatIsHeldIsCounted(t *testing.T) {
	deep := f32.with(3, 8)
	for range 90 {
		deep = append(message{}.with(2, 13).with(4, deep), strings.Repeat("\x22\x02\x10\x0b", 1000)...)
	}
	many := []message{parameter()}
	for k := range 5000 {
		many = append(many, negate().with(1, fmt.Sprint("n", k+2)).with(35, k+2))
	}
	for name, b := range map[string]message{
		"tuples in tuples":   one(parameter(), negate().with(3, deep)),
		"instructions":       one(many...).with(6, 7),
		"operands":           one(parameter(), negate().with(36, message(strings.Repeat("\x01", 100_000)))),
		"fields of no texts": one(parameter(), append(negate(), strings.Repeat("\xc0\x0c\x01", 50_000)...)),
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := Decode(b, within(1<<20)); !errors.Is(err, errFull) {
				t.Errorf("%d bytes: error %v", len(b), err)
			}
			if _, _, err := Decode(b, nil); errors.Is(err, errFull) {
				t.Error(err)
			}
		})
	}
}

// Each distinct field would be compared with all others.
func TestFieldsWithoutTextAreNamedUpToALimit(t *testing.T) {
	b := negate()
	for n := range 100_000 {
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(1000+n), protowire.VarintType), 1)
	}
	_, notes, err := Decode(one(parameter(), b), nil)
	if err != nil || len(notes) != maxNotes {
		t.Errorf("%d notes, %v", len(notes), err)
	}
}

func TestLongValueOfFewElementsIsRefused(t *testing.T) {
	c := message{}.with(1, "c").with(2, "constant").with(3, message{}.with(2, 5)).with(35, 2).
		with(8, message{}.with(1, message{}.with(2, 5)).with(5, message(strings.Repeat("\x01", 100_000))))
	if _, err := read(one(parameter(), c)); err == nil || !strings.Contains(err.Error(), "a value of 100") {
		t.Error(err)
	}
}

// A message may have what no text has: updates in a circle.
func TestUpdatesInACircleEnd(t *testing.T) {
	b := one(parameter(),
		message{}.with(1, "s").with(2, "async-start").with(3, f32).with(35, 2).with(36, 1).with(38, 9),
		message{}.with(1, "u").with(2, "async-update").with(3, f32).with(35, 3).with(36, 2).with(36, 4),
		message{}.with(1, "v").with(2, "async-update").with(3, f32).with(35, 4).with(36, 3)).
		with(3, message{}.with(1, "w").with(2, parameter()).with(2, message{}.with(1, "r").with(2, "async").with(3, f32).with(35, 2).with(36, 1)).with(5, 9).with(6, 2))
	if _, err := read(b); err == nil {
		t.Error("a cycle is no error")
	}
}
