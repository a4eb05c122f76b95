package load

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// A buffer of an assignment: its number, size, instruction and part.
func buffer(id, bytes, instruction int) message {
	return message{}.with(1, id).with(2, bytes).with(3, message{}.with(4, instruction).with(3, 0))
}

// assigned is where a buffer lies.
func assigned(id, offset, bytes int) message {
	return message{}.with(9, message{}.with(1, id).with(2, offset).with(3, bytes))
}

func event(kind, id, with int) message {
	return message{}.with(1, message{}.with(1, kind).with(2, id).with(5, with))
}

// heap is an assignment with one allocation of 100 bytes and three buffers in it.
func heap() message {
	return message{}.with(1, buffer(1, 40, 7)).with(1, buffer(2, 40, 8)).with(1, buffer(3, 60, 9)).
		with(3, append(append(append(message{}.with(2, 100), assigned(1, 0, 40)...), assigned(2, 0, 40)...), assigned(3, 40, 60)...))
}

func messages(list ...message) (all message) {
	for _, m := range list {
		all = append(all, m...)
	}
	return all
}

func TestDecodeAssignment(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    message
		want string // what lives at the peak of each allocation, as INSTRUCTION:BYTES
	}{
		{"as XLA says", heap().with(5, message{}.with(1, 0).with(2, message("\x01\x03"))), "7:40 9:60"},
		{"by events", heap().with(4, messages(event(0, 1, 0), event(1, 1, 0), event(0, 2, 0), event(0, 3, 0), event(1, 2, 0), event(1, 3, 0))), "8:40 9:60"},
		{"by events, with memory that is shared", heap().with(4, messages(event(0, 1, 0), event(2, 2, 1), event(1, 1, 0), event(0, 3, 0))), "8:40 9:60"},
		{"all freed before the peak", heap().with(4, messages(event(0, 1, 0), event(1, 1, 0), event(0, 3, 0))), "9:60"},
		{"no event", heap().with(4, message{}), ""},
		{"a parameter", message{}.with(1, buffer(1, 8, 7)).with(3, append(message{}.with(2, 8).with(5, 1).with(6, 3), assigned(1, 0, 8)...)), "7:8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := DecodeAssignment(tc.b, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, x := range a.Allocations {
				for _, b := range x.Peak {
					got = append(got, fmt.Sprint(b.id, ":", b.Bytes))
				}
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// What contradicts itself is refused, and so is what is no assignment.
func TestDecodeAssignmentErrors(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    message
		want string // "" for ErrNoAssignment
	}{
		{"nothing", nil, ""},
		{"a module", one(parameter(), negate()), ""},
		{"a module in an HloProto", message{}.with(1, one(parameter(), negate())), ""},
		{"text", message("HloModule m"), ""},
		{"no allocation", message{}.with(1, buffer(1, 40, 7)), ""},
		{"a size below 0", message{}.with(3, message{}.with(2, -1)), "a size of -1 bytes"},
		{"too large together", message{}.with(3, message{}.with(2, 1<<59)).with(3, message{}.with(2, 1)), "more than 2^59 bytes"},
		{"the same number", heap().with(1, buffer(2, 1, 1)), "two buffers have the number 2"},
		{"an unknown buffer", heap().with(3, append(message{}.with(2, 9), assigned(9, 0, 1)...)), "allocation 1 has buffer 9"},
		{"a buffer in two places", heap().with(3, append(message{}.with(2, 99), assigned(2, 0, 40)...)), "buffer 2 lies in allocations 0 and 1"},
		{"beyond the end", message{}.with(1, buffer(1, 40, 7)).with(3, append(message{}.with(2, 100), assigned(1, 61, 40)...)), "beyond the end"},
		{"beyond 64 bits", message{}.with(1, buffer(1, 40, 7)).with(3, append(message{}.with(2, 100), assigned(1, -1, 40)...)), "a size of -1 bytes"},
		{"a peak elsewhere", heap().with(5, message{}.with(1, 1).with(2, message("\x01"))), "allocation 1 is not there"},
		{"an unknown buffer at the peak", heap().with(5, message{}.with(1, 0).with(2, message("\x09"))), "buffer 9 is said to live"},
		{"an event of an unknown buffer", heap().with(4, event(0, 9, 0)), "buffer 9, which is not there"},
		{"freed before it is made", heap().with(4, event(1, 1, 0)), "buffer 1 is freed"},
		{"freed twice", heap().with(4, messages(event(0, 1, 0), event(1, 1, 0), event(1, 1, 0))), "buffer 1 is freed"},
		{"made twice", heap().with(4, messages(event(0, 1, 0), event(0, 1, 0))), "buffer 1 is made twice"},
		{"shared with nothing", heap().with(4, event(2, 1, 2)), "shares the memory of buffer 2"},
		{"events of no allocation", heap().with(4, message{}.with(3, 7)), "allocation 7 of a heap"},
		{"a memory space of no sense", message{}.with(3, message{}.with(2, 1).with(8, -1)), "memory space -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := DecodeAssignment(tc.b, nil)
			if tc.want == "" && !errors.Is(err, ErrNoAssignment) || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// Memory is counted, as the bytes may be made to harm.
func TestMemoryOfAssignmentIsCounted(t *testing.T) {
	var buffers, allocations, events message
	for k := range 20_000 {
		buffers = buffers.with(1, message{}.with(1, k))
		allocations = allocations.with(3, message{})
		events = append(events, event(0, k, 0)...)
	}
	for name, b := range map[string]message{"buffers": buffers.with(3, message{}), "allocations": allocations, "events": buffers.with(3, message{}).with(4, events)} {
		if _, err := DecodeAssignment(b, within(1<<20)); !errors.Is(err, errFull) {
			t.Errorf("%s, %d bytes: %v", name, len(b), err)
		}
		if _, err := DecodeAssignment(b, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// No bytes make it panic, and what it reads is consistent.
func FuzzAssignment(f *testing.F) {
	for _, name := range []string{"loop-0.12.0.1.assignment.pb", "loop-0.4.38.dump.pb", "loop-gpu-0.12.0.1.dump.pb"} {
		b, err := os.ReadFile("../../measure/testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(heap().with(5, message{}.with(1, 0).with(2, message("\x01\x03")))))
	f.Add([]byte(heap().with(4, messages(event(0, 1, 0), event(2, 2, 1), event(1, 1, 0)))))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeAssignment(b, nil)
		if err != nil {
			return
		}
		for _, x := range a.Allocations {
			for _, v := range x.Peak {
				if v.Offset+v.Bytes > x.Bytes {
					t.Errorf("%+v in %d bytes", v, x.Bytes)
				}
			}
		}
		a.Name(b)
	})
}
