package doctor

// What XLA says of a program it compiles: buffer assignment and
// rematerialization.

var programPatterns = []pattern{
	{kind: BufferAssignment, framework: "xla", anchors: []string{"BufferAssignment OOM Debugging"}, rest: ``},
	{kind: BufferAssignment, framework: "xla", anchors: []string{"parameter allocation: ", "constant allocation: ", "maybe_live_out allocation: ",
		"preallocated temp allocation: ", "preallocated temp fragmentation: ", "total allocation: ", "total fragmentation: "},
		whole: true, rest: `(?P<name>[\w ]+): *{want}`},
	{kind: PeakBuffer, framework: "xla", line: true, anchors: []string{"\tSize: ", "  Size: "}, rest: `\s*Size: {want}\s*$`},
	// hlo_rematerialization.cc. Without the byte counts in 0.4.1 and before.
	{kind: Remat, framework: "xla", nonfatal: true, anchors: []string{"Can't reduce memory use below "},
		rest: `(?:{size} \({limit}\)|{limit}) by rematerialization(?:; only reduced to (?:{size} \({want}\)|{want})(?:, down from (?:{size} \({allocated}\)|{allocated}))?)?`},
}
