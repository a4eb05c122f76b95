package torch

// A reader of Python pickles that hold plain data.
//
// A pickle is a program for a small stack machine. This one makes {'a': [1, 2]}:
//
//	80 04          PROTO 4
//	7d             EMPTY_DICT         stack: {}
//	8c 01 61       SHORT_BINUNICODE   {} 'a'
//	94             MEMOIZE            'a' is number 0 of the memo
//	5d             EMPTY_LIST         {} 'a' []
//	28             MARK               {} 'a' [] |
//	4b 01 4b 02    BININT1, twice     {} 'a' [] | 1 2
//	65             APPENDS            {} 'a' [1, 2]
//	73             SETITEM            {'a': [1, 2]}
//	2e             STOP               the value is what is on the stack
//
// The opcodes that push data are run, those that protocols 2 to 5 write. The opcodes
// that import a name, call it or look something up outside the pickle are refused by
// name, so a pickle from a stranger can do no harm.
//
// The input may be damaged or hostile:
//   - a length in it is never trusted: strings grow only as bytes arrive;
//   - nesting is only pointers, nothing recurses, so depth does not matter;
//   - memory is at most a constant times the input, see freeValues.
//
// The whole tree is in memory, because a memo may refer to anything. What the
// pickle shares is shared in the tree: a stack frame that 700,000 events name
// is one *dict and 700,000 pointers.

import (
	"encoding/binary"
	"io"
	"math"

	"gpumem/internal/input"
)

// The values of a tree are nil, bool, int64, uint64 (2^63 and above), wideInt,
// float64, string (str, bytes and bytearray), *list and *dict.

// list is a Python list, tuple, set or frozenset.
type list struct{ items []any }

// dict is a Python dict. Later items win over earlier ones with the same key.
type dict struct {
	items []item
	index map[string]int // of the string keys; made when items are many
}

type item struct{ key, value any }

// wideInt stands for an integer of more than 64 bits.
type wideInt struct{}

// indexAbove is how many items a dict may have before get makes an index. The
// dicts of a snapshot have 3 to 15.
const indexAbove = 32

// get returns the value of a string key.
func (d *dict) get(key string) (any, bool) {
	if len(d.items) > indexAbove {
		if d.index == nil {
			d.index = make(map[string]int)
			for i, it := range d.items {
				if k, ok := it.key.(string); ok {
					d.index[k] = i
				}
			}
		}
		i, ok := d.index[key]
		if !ok {
			return nil, false
		}
		return d.items[i].value, true
	}
	for i := len(d.items) - 1; i >= 0; i-- {
		if k, ok := d.items[i].key.(string); ok && k == key {
			return d.items[i].value, true
		}
	}
	return nil, false
}

// unpickler runs one pickle. The first error stays in err; the methods that
// read then return zero values, and run stops after the opcode at hand.
type unpickler struct {
	in    pickleInput
	stack []any
	marks []int // stack heights at each open MARK
	memo  []any // by number, as long as the numbers come in order
	far   map[uint32]any
	err   error
	at    int64 // offset of the opcode at hand
	file  *input.Reader
	made  int64 // lists, tuples, sets and dicts
	held  int   // bytes that are not counted yet
	lists int   // bytes of the stack and the memo, as far as they are in held
}

// unpickle reads one pickle. more reports bytes after the pickle that were read with it.
func unpickle(file *input.Reader) (v any, more bool, err error) {
	u := &unpickler{file: file, in: pickleInput{file: file, buf: make([]byte, pickleBuffer)}}
	v, err = u.run()
	return v, u.in.pos < u.in.end, err
}

// fail records what is wrong with the opcode at hand.
func (u *unpickler) fail(format string, args ...any) {
	if u.err == nil {
		u.err = u.file.FailAt(u.at, format, args...)
	}
}

func (u *unpickler) run() (any, error) {
	for u.err == nil {
		u.at = u.in.offset()
		op := u.in.byte()
		if u.in.err == nil && op == '.' /* STOP */ {
			v := u.pop()
			return v, u.err
		}
		if u.in.err == nil {
			u.step(op)
			u.tally()
		}
		if u.in.err != nil {
			u.inputEnded()
		}
	}
	return nil, u.err
}

// An opcode of one byte makes an empty dict, which takes 80 bytes with its place on the
// stack. In what Python writes, values have names, numbers and items: there is less than one
// list or dict, or one memo number, for four bytes, and lists come 1000 items at a time.
// freeValues of each are allowed in any case.
const (
	freeValues    = 1 << 20
	bytesPerValue = 4
)

// tally counts the memory that the last opcodes took.
func (u *unpickler) tally() {
	if n := max(u.made, int64(len(u.stack)), int64(len(u.memo)+len(u.far))); n > freeValues && n > freeValues+u.at/bytesPerValue {
		u.fail("%d values in %d bytes; this is no snapshot, and is not held in memory", n, u.at)
	}
	const place = 16 // on the stack and in the memo
	if n := place * (cap(u.stack) + cap(u.memo) + 4*len(u.far)); n > u.lists {
		u.held += n - u.lists
		u.lists = n
	}
	if u.held >= 64<<10 && u.err == nil {
		u.err = u.file.Take(int64(u.held))
		u.held = 0
	}
}

// inputEnded turns the input's error into the pickle's.
func (u *unpickler) inputEnded() {
	if u.in.err == io.EOF {
		u.at = u.in.offset()
		u.err = nil // whatever came of the missing bytes
		u.fail("the pickle ends before its STOP opcode; the file is cut short")
		return
	}
	u.err = u.in.err
}

// step runs one opcode. Names and numbers are those of Python's Lib/pickletools.py.
func (u *unpickler) step(op byte) {
	in := &u.in
	switch op {
	case 0x80: // PROTO
		if v := in.byte(); v > 5 {
			u.fail("the pickle has protocol %d; this version reads 2 to 5", v)
		}
	case 0x95: // FRAME: only a hint for readers of unbuffered files
		in.bytes(8)

	case 'N': // NONE
		u.push(nil)
	case 0x88: // NEWTRUE
		u.push(true)
	case 0x89: // NEWFALSE
		u.push(false)
	case 'K': // BININT1
		u.push(int64(in.byte()))
	case 'M': // BININT2
		u.push(int64(in.uint(2)))
	case 'J': // BININT
		u.push(int64(int32(in.uint(4))))
	case 0x8a: // LONG1
		u.push(longValue(in.bytes(int(in.byte()))))
	case 0x8b: // LONG4
		u.push(longValue([]byte(in.string(in.uint(4)))))
	case 'G': // BINFLOAT
		if b := in.bytes(8); b != nil {
			u.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
		}

	case 0x8c, 'U', 'C': // SHORT_BINUNICODE, SHORT_BINSTRING, SHORT_BINBYTES
		u.push(in.string(uint64(in.byte())))
	case 'X', 'T', 'B': // BINUNICODE, BINSTRING, BINBYTES
		u.push(in.string(in.uint(4)))
	case 0x8d, 0x8e, 0x96: // BINUNICODE8, BINBYTES8, BYTEARRAY8
		u.push(in.string(in.uint(8)))

	case '(': // MARK
		u.marks = append(u.marks, len(u.stack))
	case '0': // POP
		if n := len(u.marks); n > 0 && u.marks[n-1] == len(u.stack) {
			u.marks = u.marks[:n-1]
		} else {
			u.pop()
		}
	case '1': // POP_MARK
		u.popMark()
	case '2': // DUP
		u.stack = append(u.stack, u.top())

	case ']', ')', 0x8f: // EMPTY_LIST, EMPTY_TUPLE, EMPTY_SET
		u.push(&list{})
	case 'l', 't', 0x91: // LIST, TUPLE, FROZENSET
		u.push(&list{items: copied(u.popMark())})
	case 0x85: // TUPLE1
		u.pushTuple(1)
	case 0x86: // TUPLE2
		u.pushTuple(2)
	case 0x87: // TUPLE3
		u.pushTuple(3)
	case 'a': // APPEND
		v := u.pop()
		u.extend([]any{v})
	case 'e', 0x90: // APPENDS, ADDITEMS
		u.extend(u.popMark())
	case '}': // EMPTY_DICT
		u.push(&dict{})
	case 'd': // DICT
		items := copied(u.popMark()) // the push below would overwrite them
		u.push(&dict{})
		u.setItems(items)
	case 's': // SETITEM
		v := u.pop()
		k := u.pop()
		u.setItems([]any{k, v})
	case 'u': // SETITEMS
		u.setItems(u.popMark())

	case 0x94: // MEMOIZE
		u.remember(uint32(len(u.memo)+len(u.far)), u.top())
	case 'q': // BINPUT
		u.remember(uint32(in.byte()), u.top())
	case 'r': // LONG_BINPUT
		u.remember(uint32(in.uint(4)), u.top())
	case 'h': // BINGET
		u.recall(uint32(in.byte()))
	case 'j': // LONG_BINGET
		u.recall(uint32(in.uint(4)))

	default:
		u.refuse(op)
	}
}

// refuse fails because of an opcode that is not run.
func (u *unpickler) refuse(op byte) {
	if name, ok := codeOpcodes[op]; ok {
		u.fail("opcode 0x%02x (%s) is not data: it would run or load something; only pickles of plain data are read", op, name)
		return
	}
	u.fail("0x%02x is not an opcode that pickle protocols 2 to 5 write; the file is damaged", op)
}

func (u *unpickler) push(v any) {
	switch v := v.(type) {
	case string:
		u.held += 16 + len(v)
	case int64, uint64, float64:
		u.held += 8
	case *list:
		u.made++
		u.held += 32 + 16*cap(v.items)
	case *dict:
		u.made++
		u.held += 48
	}
	u.stack = append(u.stack, v)
}

// floor returns the stack height below which the opcode at hand may not reach.
func (u *unpickler) floor() int {
	if n := len(u.marks); n > 0 {
		return u.marks[n-1]
	}
	return 0
}

func (u *unpickler) top() any {
	if len(u.stack) <= u.floor() {
		u.fail("the opcode finds nothing on the stack; the pickle is damaged")
		return nil
	}
	return u.stack[len(u.stack)-1]
}

func (u *unpickler) pop() any {
	v := u.top()
	if u.err == nil {
		u.stack = u.stack[:len(u.stack)-1]
	}
	return v
}

// popMark takes everything above the last MARK. The slice is good until the
// next push.
func (u *unpickler) popMark() []any {
	n := len(u.marks)
	if n == 0 {
		u.fail("the opcode finds no MARK on the stack; the pickle is damaged")
		return nil
	}
	from := u.marks[n-1]
	u.marks = u.marks[:n-1]
	items := u.stack[from:]
	u.stack = u.stack[:from]
	return items
}

func (u *unpickler) pushTuple(n int) {
	if len(u.stack)-n < u.floor() {
		u.fail("the opcode finds fewer than %d values on the stack; the pickle is damaged", n)
		return
	}
	from := len(u.stack) - n
	t := &list{items: copied(u.stack[from:])}
	u.stack = u.stack[:from]
	u.push(t)
}

func copied(items []any) []any { return append([]any(nil), items...) }

// extend adds items to the list on top of the stack.
func (u *unpickler) extend(items []any) {
	l, ok := u.top().(*list)
	if !ok {
		u.fail("the opcode adds to something that is not a list; the pickle is damaged")
		return
	}
	l.items = append(l.items, items...)
	u.held += 20 * len(items)
}

// setItems adds keys and values, by turns, to the dict on top of the stack.
func (u *unpickler) setItems(kv []any) {
	d, ok := u.top().(*dict)
	if !ok || len(kv)%2 != 0 {
		u.fail("the opcode sets items of something that is not a dict, or a key has no value; the pickle is damaged")
		return
	}
	if d.items == nil {
		d.items = make([]item, 0, len(kv)/2)
	}
	for i := 0; i < len(kv); i += 2 {
		d.items = append(d.items, item{kv[i], kv[i+1]})
	}
	u.held += 20 * len(kv)
}

// remember stores v in the memo. Writers number from 0 upward; other numbers go
// to a map, so that a large number costs nothing.
func (u *unpickler) remember(n uint32, v any) {
	switch {
	case u.err != nil:
	case uint64(n) < uint64(len(u.memo)):
		u.memo[n] = v
	case uint64(n) == uint64(len(u.memo)):
		u.memo = append(u.memo, v)
	default:
		if u.far == nil {
			u.far = make(map[uint32]any)
		}
		u.far[n] = v
	}
}

func (u *unpickler) recall(n uint32) {
	if uint64(n) < uint64(len(u.memo)) {
		u.stack = append(u.stack, u.memo[n])
		return
	}
	v, ok := u.far[n]
	if !ok {
		u.fail("the memo has no number %d; the pickle is damaged", n)
		return
	}
	u.stack = append(u.stack, v)
}
