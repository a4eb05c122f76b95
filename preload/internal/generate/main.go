// Command generate makes the lists that the libraries of this wing are built from.
//
//	generate front ARCH NAMES OUT C...
//
// makes what a library needs to stand in front of another: for each name in a list a jump to
// the other library's function, but for those that C files of the library define; the table of
// names; and the linker's list of exported names. ARCH is GOARCH. Of the C files the functions
// that begin with "API name(" are served. OUT gets forward.S, names.c and exports.map.
//
// A line of NAMES is a name, or a name, a mark (submits or mapped: its calls pass the gate, see
// preload/front/gate.h) and how many words its arguments are. Where one has a mark, the gate's slots
// are made, too.
//
//	generate sim VERSIONS OUT
//
// makes names.h of the simulated driver: its functions with their names and versions.
//
//	generate standin NAMES LIBRARY VERSION OUT GLOB...
//
// makes list.h, the functions of a library that stands beside the simulated driver, and
// version.map, which exports what a GLOB matches under the name of a VERSION, which may be
// empty. A line of NAMES is a library and a function, behind which may stand the places of arguments by
// which it gives a number, or a function alone.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// An assembler's text for an architecture.
type machine struct {
	jump string // to an entry of gm_table
	slot string // of the gate: its number, and on to pass
	pass string // the gate (preload/front/gate.h) for a slot: enter, the driver's function with 16 words, leave
}

var machines = map[string]machine{
	"amd64": {
		jump: "\tjmp *gm_table+%[1]d(%%rip)\n",
		slot: "\tmovl $%d, %%eax\n\tjmp gm_pass\n",
		pass: passAMD64,
	},
	"arm64": {
		jump: "\tadrp x16, gm_table+%[1]d\n\tldr x16, [x16, #:lo12:gm_table+%[1]d]\n\tbr x16\n",
		slot: "\tmov w17, #%d\n\tb gm_pass\n",
		pass: passARM64,
	},
}

// gm_enter_gate and gm_leave_gate as gate.h has them: struct gm_passing begins with in and passes.
// No register of an argument's changes before the driver's function is called. Stores of amd64
// are seen in order.
const (
	passAMD64 = `gm_pass:
	.cfi_startproc
	movq gm_mine@gottpoff(%rip), %r11
	movq %fs:(%r11), %r11
	testq %r11, %r11
	je 2f
	incq (%r11)
	cmpl $0, gm_closed(%rip)
	jne 1f
0:	pushq %rbx
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %rbx, 0
	movq %r11, %rbx
	.rept 10
	pushq 88(%rsp)
	.cfi_adjust_cfa_offset 8
	.endr
	leaq gm_gated(%rip), %r11
	call *(%r11,%rax,8)
	addq $80, %rsp
	.cfi_adjust_cfa_offset -80
	incq 8(%rbx)
	decq (%rbx)
	popq %rbx
	.cfi_adjust_cfa_offset -8
	.cfi_restore %rbx
	ret
1:	decq (%r11)
2:	.irp r, rdi, rsi, rdx, rcx, r8, r9, rax
	pushq %\r
	.cfi_adjust_cfa_offset 8
	.endr
	call gm_enter_slot
	movq %rax, %r11
	.irp r, rax, r9, r8, rcx, rdx, rsi, rdi
	popq %\r
	.cfi_adjust_cfa_offset -8
	.endr
	jmp 0b
	.cfi_endproc
`
	passARM64 = `gm_pass:
	.cfi_startproc
	adrp x16, :gottprel:gm_mine
	ldr x16, [x16, #:gottprel_lo12:gm_mine]
	mrs x9, tpidr_el0
	ldr x9, [x9, x16]
	cbz x9, 2f
	ldr x10, [x9]
	add x10, x10, #1
	str x10, [x9]
	adrp x11, gm_closed
	add x11, x11, #:lo12:gm_closed
	ldar w11, [x11]
	cbnz w11, 1f
0:	stp x29, x30, [sp, #-32]!
	.cfi_adjust_cfa_offset 32
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	str x19, [sp, #16]
	.cfi_rel_offset x19, 16
	mov x29, sp
	.cfi_def_cfa_register x29
	mov x19, x9
	sub sp, sp, #64
	ldp x9, x10, [x29, #32]
	ldp x11, x12, [x29, #48]
	ldp x13, x14, [x29, #64]
	ldp x15, x16, [x29, #80]
	stp x9, x10, [sp]
	stp x11, x12, [sp, #16]
	stp x13, x14, [sp, #32]
	stp x15, x16, [sp, #48]
	adrp x16, gm_gated
	add x16, x16, #:lo12:gm_gated
	ldr x16, [x16, x17, lsl #3]
	blr x16
	ldr x10, [x19, #8]
	add x10, x10, #1
	str x10, [x19, #8]
	ldr x10, [x19]
	sub x10, x10, #1
	stlr x10, [x19]
	mov sp, x29
	.cfi_def_cfa_register sp
	ldr x19, [sp, #16]
	ldp x29, x30, [sp], #32
	.cfi_adjust_cfa_offset -32
	.cfi_restore x19
	.cfi_restore x29
	.cfi_restore x30
	ret
1:	ldr x10, [x9]
	sub x10, x10, #1
	str x10, [x9]
2:	stp x29, x30, [sp, #-96]!
	.cfi_adjust_cfa_offset 96
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	stp x0, x1, [sp, #16]
	stp x2, x3, [sp, #32]
	stp x4, x5, [sp, #48]
	stp x6, x7, [sp, #64]
	stp x8, x17, [sp, #80]
	mov x29, sp
	bl gm_enter_slot
	mov x9, x0
	ldp x0, x1, [sp, #16]
	ldp x2, x3, [sp, #32]
	ldp x4, x5, [sp, #48]
	ldp x6, x7, [sp, #64]
	ldp x8, x17, [sp, #80]
	ldp x29, x30, [sp], #96
	.cfi_adjust_cfa_offset -96
	.cfi_restore x29
	.cfi_restore x30
	b 0b
	.cfi_endproc
`
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	switch {
	case len(args) >= 5 && args[0] == "front":
		return front(args[1:])
	case len(args) == 3 && args[0] == "sim":
		return sim(args[1], args[2])
	case len(args) >= 6 && args[0] == "standin":
		return standin(args[1:])
	}
	return errors.New("want front, sim or standin with their arguments, as its source has them")
}

func front(args []string) error {
	arch, list, out := args[0], args[1], args[2]
	m, ok := machines[arch]
	if !ok {
		return fmt.Errorf("%s: no such architecture; there are amd64 and arm64", arch)
	}
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	served, err := defined(args[3:])
	if err != nil {
		return err
	}
	all, marked, err := marksOf(string(text))
	if err != nil {
		return err
	}
	names := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(served, n) })
	if err := checkForms(all, marked); err != nil {
		return err
	}

	var gated string
	var asm, table, exports strings.Builder
	asm.WriteString("// All functions that are not served: a jump each.\n\t.text\n")
	for i, n := range names {
		fmt.Fprintf(&asm, "\t.globl %[1]s\n\t.type %[1]s,%%function\n%[1]s:\n", n)
		fmt.Fprintf(&asm, m.jump, 8*i)
		fmt.Fprintf(&asm, "\t.size %[1]s,.-%[1]s\n", n)
	}
	if len(marked) > 0 {
		slots, c := gate(m, names, marked)
		asm.WriteString(slots)
		gated = c
	}
	fmt.Fprintf(&asm, "\t.bss\n\t.globl gm_table\n\t.hidden gm_table\n\t.balign 8\ngm_table:\n\t.skip %d\n", 8*len(names))
	asm.WriteString("\t.section .note.GNU-stack,\"\",%progbits\n")
	table.WriteString("#define HIDDEN __attribute__((visibility(\"hidden\")))\n")
	table.WriteString("HIDDEN const char gm_names[] =\n")
	for _, n := range names {
		fmt.Fprintf(&table, "  \"%s\\0\"\n", n)
	}
	table.WriteString("  ;\n" + gated)
	fmt.Fprintf(&exports, "{ global:\n  %s;\nlocal: *; };\n", strings.Join(append(names, served...), ";\n  "))
	return write(out, map[string]string{"forward.S": asm.String(), "names.c": table.String(), "exports.map": exports.String()})
}

// gateWords are the words that a slot hands on.
const gateWords = 16

// marksOf returns the names of a list in order, and those that are marked.
func marksOf(text string) (names []string, marked map[string]bool, err error) {
	marked = map[string]bool{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0][0] == '#' {
			continue
		}
		names = append(names, f[0])
		if len(f) == 1 {
			continue
		}
		words := 0
		if len(f) == 3 {
			words, _ = strconv.Atoi(f[2])
		}
		if words < 1 || words > gateWords || f[1] != "submits" && f[1] != "mapped" {
			return nil, nil, fmt.Errorf("%q: want a name, or a name, submits or mapped, and 1 to %d words", strings.TrimSpace(line), gateWords)
		}
		marked[f[0]] = true
	}
	slices.Sort(names)
	return slices.Compact(names), marked, nil
}

// form is what tells the forms of one function apart: its version, and streams of each thread's own.
var form = regexp.MustCompile(`(_v\d+)?(_pt[ds][sz])?$`)

// checkForms finds a function of which one form is marked and another is not. By cuGetProcAddress
// they have one name.
func checkForms(names []string, marked map[string]bool) error {
	of := map[string]bool{}
	for _, n := range names {
		base := form.ReplaceAllString(n, "")
		if m, ok := of[base]; ok && m != marked[n] {
			return fmt.Errorf("%s: one form of it is marked, and another is not", base)
		}
		of[base] = marked[n]
	}
	return nil
}

// gate makes the slots: one for each function that is marked, as many for forms that only
// cuGetProcAddress gives out, and some for functions of a driver that is newer than the list.
func gate(m machine, names []string, marked map[string]bool) (asm, c string) {
	const newer = 64
	slots := 2*len(marked) + newer
	var a, b strings.Builder
	fmt.Fprintf(&a, "\t.hidden gm_mine\n\t.hidden gm_closed\n\t.hidden gm_enter_slot\n\t.globl gm_slots\n\t.hidden gm_slots\n\t.balign 16\n%s\t.balign 16\ngm_slots:\n", m.pass)
	for i := range slots {
		fmt.Fprintf(&a, m.slot+"\t.balign 16\n", i)
	}
	fmt.Fprintf(&a, "\t.bss\n\t.globl gm_gated\n\t.hidden gm_gated\n\t.balign 8\ngm_gated:\n\t.skip %d\n\t.text\n", 8*slots)
	fmt.Fprintf(&b, "HIDDEN const int gm_slot_count = %d;\nHIDDEN const unsigned char gm_submits[] = {", slots)
	for _, n := range names {
		if marked[n] {
			b.WriteString("1,")
		} else {
			b.WriteString("0,")
		}
	}
	b.WriteString("};\n")
	return a.String(), b.String()
}

// write writes files into a folder.
func write(folder string, files map[string]string) error {
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// sim makes names.h of lines "FUNCTION NAME VERSION".
func sim(list, out string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("#define SIM_NAMES")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 {
			fmt.Fprintf(&b, " \\\n  NAME(%s)", strings.Join(f, ", "))
		}
	}
	return write(out, map[string]string{"names.h": b.String() + "\n"})
}

// hasSize are the functions that tell the size of a workspace, for which noop.c has another answer.
// Those whose arguments are known have the numbers of those in names.txt.
var hasSize = regexp.MustCompile(`^cusolver.*_bufferSize`)

// output is the place of an argument, from 0, by which a function gives an int (i) or 64 bits (q).
// Arguments that are floating-point numbers are not counted.
var output = regexp.MustCompile(`\b([0-9]+)([iq])\b`)

func standin(args []string) error {
	list, library, version, out := args[0], args[1], args[2], args[3]
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("#define NAMES")
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 1 {
			f = []string{library, f[0]}
		}
		if len(f) == 0 || f[0] != library {
			continue
		}
		kind, name := "NAME", f[1]
		switch {
		case len(f) > 2:
			kind, name = "GIVES", name+", "+output.ReplaceAllString(strings.Join(f[2:], " "), "give_$2(a$1);")
		case hasSize.MatchString(name):
			kind = "SIZE"
		}
		fmt.Fprintf(&b, " \\\n  %s(%s)", kind, name)
	}
	exports := fmt.Sprintf("%s { global:\n  %s;\n  local: *; };\n", version, strings.Join(args[4:], ";\n  "))
	return write(out, map[string]string{"list.h": b.String() + "\n", "version.map": exports})
}

var definition = regexp.MustCompile(`(?m)^API (\w+)\(`)

// defined returns the names that C files define for export.
func defined(files []string) ([]string, error) {
	var names []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for _, m := range definition.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
