package hlo_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	. "gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

func TestParseErrors(t *testing.T) {
	const p = "p = f32[2] parameter(0)\n" // line 4 of an entry
	deep := strings.Repeat
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", `1:1: expected HloModule or a computation, found the end of the text`},
		{"blanks and a comment", " \n// x\n", `3:1: expected HloModule or a computation, found the end of the text`},
		{"no HLO", "\x7fELF", `1:1: expected HloModule or a computation, found "\x7f"`},
		{"a binary module", "\n\x04jit_f", `2:1: expected HloModule or a computation, found "\x04"`},
		{"a name alone", "HloModule", `1:10: expected the module's name, found the end of the text`},
		{"a header alone", "HloModule m\n", `2:1: expected a computation, found the end of the text`},
		{"cut in the header", "HloModule m, a={1", `1:16: the '{' is not closed`},
		{"no key", "HloModule m, =1", `1:14: expected an attribute's name, found "="`},
		{"no value", "HloModule m, a=,b", `1:16: expected the value of "a", found ","`},
		{"a key alone", "HloModule m, a\nb {", `2:1: expected '=' behind an attribute's name, found "b"`},
		{"twice a module's attribute", "HloModule m, a=1, a=2", `1:19: a second attribute "a"`},
		{"is_scheduled", "HloModule m, is_scheduled=yes", `1:27: is_scheduled is "yes", expected true or false`},
		{"a comment without an end", "HloModule m /* x", `1:13: expected a computation, found a comment without an end`},
		{"brackets across", "HloModule m, a={(\n}", `2:1: '}' does not close the '(' of 1:17`},
		{"a string without an end", `HloModule m, a="b\"`, `1:16: a string without an end`},
		{"JSON without an end", entry(p + `q = f32[2] negate(p), backend_config={"a":{"}"`), `5:38: the '{' is not closed`},
		{"an alias of nothing", "HloModule m, input_output_alias={ {0}: }", `1:40: expected '(' before the parameter of an alias, found "}"`},
		{"an alias without braces", "HloModule m, input_output_alias=5", `1:33: expected '{' before the aliases, found "5"`},
		{"an alias of a kind", "HloModule m, input_output_alias={ {0}: (1, {}, must) }", `1:48: expected may-alias or must-alias, found "must"`},
		{"an alias twice", "HloModule m, input_output_alias={ {0}: (1, {}), {0}: (2, {}) }", `1:49: a second alias of output {0}`},
		{"an alias cut short", "HloModule m, input_output_alias={ {0}: (1, {}) x }", `1:48: expected '}' behind the aliases, found "x"`},
		{"an alias out of range", "HloModule m, input_output_alias={ {0}: (2147483648, {}) }", `1:41: the number of a parameter is at most 2147483647`},
		{"an index out of range", "HloModule m, input_output_alias={ {99999999999999999999}: (0, {}) }", `1:36: an index does not fit into 64 bits`},
		{"a table", "HloModule m\nFileNames\n1 a", `3:3: expected a string or braces in the table, found "a"`},
		{"a table cut short", "HloModule m\nFileLocations\n1 {a=1", `3:3: the '{' is not closed`},
		{"a table alone", "HloModule m\nFileNames\n1 \"a\"\n", `4:1: expected a computation, found the end of the text`},

		{"no body", "HloModule m\nENTRY a", `2:8: expected '{' before a computation's instructions, found the end of the text`},
		{"no name", "HloModule m\nENTRY {", `2:7: expected a computation, found "{"`},
		{"an empty body", "HloModule m\nENTRY a {}", `2:10: expected an instruction or '}', found "}"`},
		{"a body cut short", "a {\n  p = f32[] parameter(0)\n", `3:1: expected an instruction or '}', found the end of the text`},
		{"text behind", entry(p) + "}", `7:1: expected a computation, found "}"`},
		{"twice ENTRY", entry(p) + entry(p)[16:], `7:1: a second ENTRY; the first is "main"`},
		{"twice a computation", "a {\n" + p + "}\na {\n" + p + "}", `4:1: a second computation "a"`},
		{"a signature cut short", "a (p: f32[2]) {\n", `1:15: expected "->" and the result's shape, found "{"`},
		{"a signature without shapes", "a (p) -> f32[2] {", `1:5: expected ':' behind a parameter's name, found ")"`},
		{"a signature without names", "a (f32[2]) -> f32[2] {", `1:7: expected ':' behind a parameter's name, found "["`},
		{"another result", "a (p: f32[2]) -> f32[3] {\n" + p + "}", `1:3: the result of "a" is f32[3], but its root "p" is f32[2]`},
		{"another attribute", "a {\n" + p + "}, x=1", `3:6: expected execution_thread="..." behind a computation, found "x"`},
		{"a thread", "a {\n" + p + `}, execution_thread='a"b'`, `3:21: a thread's name with a " in it`},

		{"twice ROOT", entry("ROOT a = f32[] constant(1)\nROOT b = f32[] constant(2)"), `5:1: a second ROOT; the first is "a"`},
		{"twice a name", entry(p + "p = f32[] constant(2)"), `5:1: a second instruction "p"; the first is in line 4`},
		{"no =", entry("p f32[] constant(1)"), `4:3: expected '=' behind an instruction's name, found "f32"`},
		{"no right side", entry("p ="), `5:1: expected a shape or an opcode, found "}"`},
		{"no opcode", entry("p = f32[] 3"), `4:11: expected an opcode, found "3"`},
		{"no operands", entry("p = f32[] add"), `5:1: expected '(' behind an opcode, found "}"`},
		{"operands cut short", entry(p + "q = f32[2] add(p, p"), `6:1: expected ')' behind the operands of "add", found "}"`},
		{"a comma too much", entry(p + "q = f32[2] add(p, )"), `5:19: expected another operand, found ")"`},
		{"a number as operand", entry(p + "q = f32[2] add(p, 3)"), `5:19: expected an operand, found "3"`},
		{"a cycle", entry("a = f32[] negate(b)\nb = f32[] negate(a)"), `4:18: no instruction "b" before this one; operands are printed before their users`},
		{"its own operand", entry("%a = f32[] negate(f32[] %a)"), `4:25: no instruction "a" before this one; operands are printed before their users`},
		{"an operand of another computation", "a {\n" + p + "}\nb {\nq = f32[2] negate(p)\n}", `5:19: no instruction "p" before this one; operands are printed before their users`},
		{"an operand of the outer computation", entry(p + "q = f32[2] map(p), to_apply={ r = f32[2] negate(p) }"), `5:49: no instruction "p" before this one; operands are printed before their users`},
		{"an operand of another shape", entry(p + "q = f32[2] negate(f32[3] p)"), `5:19: the operand "p" is f32[3] here, but it was f32[2]`},
		{"no such element", entry(p + "q = f32[2] negate(p#0)"), `5:20: no element 0 in f32[2]`},
		{"no such element of a tuple", entry("p = (f32[2]) parameter(0)\nq = f32[2] negate(p#1)"), `5:20: no element 1 in (f32[2])`},
		{"no such predecessor", entry(p + "q = f32[2] negate(p), control-predecessors={p, r}"), `5:48: no instruction "r" before this one; control predecessors are printed before`},
		{"twice predecessors", entry(p + "q = f32[2] negate(p), control-predecessors={p}, control-predecessors={p}"), `5:70: a second attribute control-predecessors`},
		{"no such computation", entry(p + "q = f32[2] map(p), to_apply=%f"), `5:29: no computation "f" before this one; computations are printed before their callers`},
		{"a computation that comes later", entry(p+"q = f32[2] map(p), to_apply=f") + "f {\n" + p + "}", `5:29: no computation "f" before this one; computations are printed before their callers`},
		{"itself", entry(p + "q = f32[2] map(p), to_apply=main"), `5:29: no computation "main" before this one; computations are printed before their callers`},
		{"a shape left out", entry(p + "q = broadcast(p), dimensions={0}"), `5:5: "broadcast" has no shape, and it does not follow from the operands; write the shape before the opcode`},
		{"a shape left out of a conversion", entry(p + "q = convert(p)"), `5:5: "convert" has no shape, and it does not follow from the operands; write the shape before the opcode`},
		{"a shape left out of nothing", entry("q = add()"), `4:5: "add" has no shape, and it has too few operands to tell; write the shape before the opcode`},
		{"a shape left out of a comparison of tuples", entry(p + "t = tuple(p)\nq = is-finite(t)"), `6:5: "is-finite" has no shape, and its operand is a tuple; write the shape before the opcode`},
		{"an element left out", entry(p + "q = get-tuple-element(p), index=0"), `5:5: "get-tuple-element" has no shape, and its index= is no element of its operand; write the shape before the opcode`},
		{"a call of nothing", entry(p + "q = call(p)"), `5:5: "call" has no shape, and no to_apply= says what it calls; write the shape before the opcode`},
		{"no branches", entry(p + "q = conditional(p)"), `5:5: "conditional" has no shape, and no branch_computations= say what it calls; write the shape before the opcode`},

		{"a parameter twice", entry(p + "q = f32[] parameter(0)"), `5:1: a second parameter 0; the first is "p"`},
		{"a parameter's gap", entry(p + "q = f32[] parameter(2)"), `5:1: parameter 2 of a computation that has 2 parameters`},
		{"a parameter below 0", entry("q = f32[] parameter(-1)"), `4:21: expected the number of a parameter, found "-1"`},
		{"a parameter out of range", entry("q = f32[] parameter(4294967296)"), `4:21: the number of a parameter is at most 2147483647`},

		{"an unknown type", entry("q = f33[] parameter(0)"), `4:5: "f33" is no type of XLA's`},
		{"a type in words", entry("q = tuple[] parameter(0)"), `4:5: "tuple" is no type of XLA's`},
		{"a dimension below 0", entry("q = f32[-1] parameter(0)"), `4:9: expected a dimension, found "-1"`},
		{"a dimension out of range", entry("q = f32[9223372036854775808] parameter(0)"), `4:9: a dimension does not fit into 64 bits`},
		{"a dimension too much", entry("q = f32[2,] parameter(0)"), `4:11: expected another dimension, found "]"`},
		{"a dimension half dynamic", entry("q = f32[<2] parameter(0)"), `4:9: expected a dimension, found "<"`},
		{"a tuple cut short", entry("q = (f32[2], parameter(0)"), `4:14: "parameter" is no type of XLA's`},
		{"a tuple with a comma too much", entry("q = (f32[2],) parameter(0)"), `4:13: expected another shape of the tuple, found ")"`},
		{"a layout too short", entry("q = f32[2,3]{0} parameter(0)"), `4:13: a layout of 1 dimensions for a shape that has 2`},
		{"a layout of others", entry("q = f32[2,3]{2,1} parameter(0)"), `4:13: the layout names dimension 2 of a shape that has 2`},
		{"a layout without an end", entry("q = f32[2]{0 parameter(0)")[:41], `4:11: the '{' is not closed`},
		{"an empty layout", entry("q = f32[]{} parameter(0)"), `4:10: expected an opcode, found "{"`},
		{"an element of a nested instruction", entry(p + "q = f32[2] negate((f32[2]) tuple(p)#0)"), `5:36: expected ')' behind the operands of "negate", found "#"`},
		{"a buffer of a tuple", entry("q = b((f32[2])) parameter(0)"), `4:5: b(...) is for arrays`},

		{"deep shapes", "a { p = " + deep("(", 1<<20), `1:265: more than 256 levels of nesting`},
		{"deep buffers", "a { p = " + deep("b(", 1<<20), `1:521: more than 256 levels of nesting`},
		{"deep instructions", "a { p = f32[] " + deep("negate(", 1<<20), `1:1814: more than 256 levels of nesting`},
		{"deep computations", "a { p = f32[] " + deep("map(), to_apply={ p = f32[] ", 1<<16), `1:7177: more than 256 levels of nesting`},
		{"deep brackets", "HloModule a, x=" + deep("{", 1<<20), `1:1048591: the '{' is not closed`},
		{"deep JSON", "a { p = f32[] constant(0), backend_config=" + deep("{", 1<<20), `1:43: the '{' is not closed`},
		{"many comments", "HloModule a, x={" + deep("/* ", 1<<20), `1:16: the '{' is not closed`},
		{"many blanks", "a { p = f32[] negate(" + deep(" ", 1<<20), `1:1048598: expected an operand, found the end of the text`},
		{"many attributes", "a { p = f32[] negate()" + many(1000), `1:1943: more than 256 attributes`},
		{"a long name", "a { p = f32[] negate(" + deep("x", 1<<20), `1:22: no instruction "` + deep("x", 50) + `"... before this one; operands are printed before their users`},
		{"a long opcode", "a { p = " + deep("x", 1<<20) + "()", `1:9: "` + deep("x", 50) + `"... has no shape, and it does not follow from the operands; write the shape before the opcode`},
		{"shapes that double", "a { t = tuple() t0 = tuple(t, t)" + doubled(60), `1:214: "tuple" has no shape, and its tuple is too large or too deep to be left out; write the shape before the opcode`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := ParseString(c.text)
			if err == nil {
				t.Fatalf("no error, but\n%s", m)
			}
			if err.Error() != c.want {
				t.Errorf("error\n%s\nexpected\n%s", err, c.want)
			}
			var syntax *SyntaxError
			if !errors.As(err, &syntax) {
				t.Errorf("%T", err)
			}
		})
	}
}

// many are n attributes.
func many(n int) string {
	var s strings.Builder
	for k := range n {
		s.WriteString(", " + strings.Repeat("a", 1+k/26%2) + string(rune('a'+k%26)) + string(rune('a'+k/52%26)) + "=1")
	}
	return s.String()
}

// doubled are n tuples without a shape, each of the one before and itself.
func doubled(n int) string {
	var s strings.Builder
	for k := range n {
		a, b := string(rune('0'+k/10))+string(rune('0'+k%10)), string(rune('0'+(k+1)/10))+string(rune('0'+(k+1)%10))
		if k == 0 {
			a = "0"
		}
		s.WriteString(" t" + b + " = tuple(t" + a + ", t" + a + ")")
	}
	return s.String()
}

// A text that is cut anywhere has an error or is a module: nothing else happens.
func TestParseCut(t *testing.T) {
	for _, c := range texts {
		for n := range c.text {
			fuzzed(t, c.text[:n])
		}
	}
}

// fuzzed checks what holds for any text.
func fuzzed(t *testing.T, text string) {
	m, err := ParseString(text)
	if err != nil {
		var e *SyntaxError
		message := err.Error()
		if !errors.As(err, &e) || strings.Contains(message, "\n") || len(message) > 1000 || !utf8.ValidString(message) {
			t.Fatalf("error %T %q", err, message)
		}
		lines := strings.Split(text, "\n")
		if e.Line < 1 || e.Line > len(lines) || e.Column < 1 || e.Column > len(lines[e.Line-1])+1 {
			t.Fatalf("%v, but the text has %d lines", err, len(lines))
		}
		return
	}
	linked(t, m)
	printed := m.String()
	again, err := ParseString(printed)
	if err != nil {
		t.Fatalf("%v\nof %q\nprinted as\n%s", err, text, printed)
	}
	if err := hlotest.Equal(m, again); err != nil {
		t.Fatalf("%v\nof %q\nprinted as\n%s", err, text, printed)
	}
	if twice := again.String(); twice != printed {
		t.Fatalf("printed as\n%s\nand then\n%s", printed, twice)
	}
	if err := cloned(again); err != nil {
		t.Fatal(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range texts {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) { fuzzed(t, text) })
}
