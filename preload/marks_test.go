package preload

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// marks are the rules by which names of the driver are marked in names/cuda.txt: the first whose
// pattern a name has, without what tells its forms apart, decides. A call that is marked passes
// the gate (front/gate.h): it must not come to the driver while the pool's memory is on the host.
//
//	submits  the call queues work, or does it at once
//	mapped   the call fails, or has another answer, where no memory is mapped at an address
//	-        neither, for the reason beside it
var marks = []struct{ mark, pattern, why string }{
	{"submits", `cuLaunch`, "kernels, and functions of the host in a stream"},
	{"submits", `cuMem(cpy|set)|cuFabricCpy`, "copies and fills, those that wait too"},
	{"submits", `cuMem(Prefetch|Discard|BatchDecompress|MapArray)|cuStreamAttachMem`, "work of a stream on memory"},
	{"submits", `cuGraph(Launch|Upload)`, "kernels and copies of a graph"},
	{"submits", `cuGraphInstantiate`, "uploads the graph where its flags say so"},
	{"submits", `cu(EventRecord|CtxRecordEvent|GreenCtxRecordEvent)`, "a place in a stream"},
	{"submits", `cu(Stream|Ctx|GreenCtx)WaitEvent`, "a wait in a stream"},
	{"submits", `cuStream(WaitValue|WriteValue|BatchMemOp)`, "waits for memory, and writes to it, in a stream"},
	{"submits", `cuStreamAddCallback`, "a function of the host in a stream"},
	{"submits", `cuStreamBegin(Re)?[Cc]apture`, "what is captured is checked as if it ran"},
	{"submits", `cu(Signal|Wait)ExternalSemaphores`, "waits of a stream and for it"},
	{"submits", `cuGraphics(Map|Unmap)Resources|cuGL(Map|Unmap)BufferObject`, "orders a stream behind the graphics library, and back"},
	{"submits", `cuEGLStream(ConsumerAcquire|ConsumerRelease|ProducerPresent|ProducerReturn)Frame`, "frames in the order of a stream"},

	{"mapped", `cuPointer[GS]etAttribute`, "memory that is not there is the host's to the driver"},
	{"mapped", `cuMem[GS]etAccess$`, "access of what is mapped"},
	{"mapped", `cuGraphAdd\w*Node$|cuGraph\w*SetParams$|cuGraphExecUpdate`, "the memory of a copy or fill is looked up"},
	{"mapped", `cuTexObjectCreate|cuTexRefSetAddress(2D)?$`, "textures of plain memory: it is looked up"},
	{"mapped", `cu(Multicast|LogicalEndpoint)BindAddr`, "takes the memory behind an address"},

	{"-", `cuMem(AllocHost|FreeHost|Host)`, "memory of the host"},
	{"-", `cuMem(Alloc|Free)`, "of the pool by its books alone; of the driver's own memory, which stays on the GPU"},
	{"-", `cuMem(GetInfo|GetAddressRange|GetHandleForAddressRange|RetainAllocationHandle)|cuIpcGetMemHandle`, "the pool answers from its books"},
	{"-", `cuMem(Create|Release|Map|Unmap|AddressReserve|AddressFree|ExportToShareableHandle|ImportFromShareableHandle)$`, "the program's own handles: it is not asked to leave"},
	{"-", `cuMemGetAllocation`, "properties of a kind of memory or of a handle"},
	{"-", `cuMemPool|cuMem(Get|Set)MemPool|cuMemGetDefaultMemPool|cuMemGetLocationInfo`, "the driver's own pools stay on the GPU"},
	{"-", `cuMem(Advise|RangeGetAttributes?)$`, "managed memory: the program is not asked to leave"},
	{"-", `cuIpc|cuImportExternal|cuDestroyExternal|cuExternalMemory`, "memory of others, which stays where it is"},
	{"-", `cuArray|cuMipmappedArray`, "arrays stay on the GPU"},
	{"-", `cuTex|cuSurf|cuTensorMap`, "reads or writes what describes a texture, an array or an address"},
	{"-", `cuMulticast|cuLogicalEndpoint`, "handles, not addresses"},
	{"-", `cu(Stream|Event|Ctx)(Synchronize|Query)$`, "waits for work, or asks for it"},
	{"-", `cuStream(Create|Destroy|Get|Set|CopyAttributes|IsCapturing|EndCapture|UpdateCaptureDependencies)`, "the stream alone"},
	{"-", `cuEvent(Create|Destroy|ElapsedTime)`, "the event alone"},
	{"-", `cuThreadExchangeStreamCaptureMode`, "the thread alone"},
	{"-", `cuGraph(Create|Clone|Destroy|DebugDotPrint|Get|Node|AddDependencies|RemoveDependencies|ConditionalHandle)|cuGraph(Retain|Release)UserObject|cuUserObject`, "the graph alone"},
	{"-", `cuGraph\w*(NodeGet|NodeSetEvent|NodeSetAttribute|NodeCopyAttributes)|cuGraphExec(Destroy|Get)`, "a node, or a graph, without an address"},
	{"-", `cuGraphics(\w+Register|Resource|SubResource|Unregister)|cuGL|cuEGL|cuVDPAU`, "names of the graphics library's memory, which stays on the GPU"},
	{"-", `cuModule|cuLibrary|cuKernel|cuLink|cuFunc|cuParam|cuOccupancy`, "code, which the driver has memory for, and arguments"},
	{"-", `cuCtx|cuGreenCtx|cuDevicePrimaryCtx|cuDevResource|cuDevSmResource`, "contexts, which stay on the GPU"},
	{"-", `cuDevice|cuDriverGetVersion|cuInit|cuGetError|cuGetProcAddress|cuGetExportTable`, "questions, and settings of a GPU"},
	{"-", `cuCheckpoint|cuCoredump|cuProfiler|cuLogs`, "tools"},
	{"-", `cuFlushGPUDirectRDMAWrites`, "writes of network cards: a program that has one open is not asked to leave"},
}

// patterns are those of rules that were asked for.
var patterns = map[string]*regexp.Regexp{}

func patternOf(rule string) *regexp.Regexp {
	if patterns[rule] == nil {
		patterns[rule] = regexp.MustCompile(`^(` + rule + `)`)
	}
	return patterns[rule]
}

var formOf = regexp.MustCompile(`(_v\d+)?(_pt[ds][sz])?$`)

// markOf returns the rule of a name; -1 if it has none.
func markOf(name string) int {
	base := formOf.ReplaceAllString(name, "")
	for i, m := range marks {
		if patternOf(m.pattern).MatchString(base) {
			return i
		}
	}
	return -1
}

// TestEveryNameIsMarkedByARule: a name that comes with a release of the driver has to be decided.
// Of one that submits work and has no mark, a call meets memory that is not mapped, and the
// context is lost. A rule that decides nothing is a pattern that is wrong.
func TestEveryNameIsMarkedByARule(t *testing.T) {
	text, err := os.ReadFile("names/cuda.txt")
	if err != nil {
		t.Fatal(err)
	}
	decided := make([]int, len(marks))
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		name := words[0]
		i := markOf(name)
		if i < 0 {
			t.Errorf("%s: no rule", name)
			continue
		}
		decided[i]++
		got := "-"
		if len(words) > 1 {
			got = words[1]
		}
		if got != marks[i].mark {
			t.Errorf("%s: %q in the list, and %q by the rule %s", name, got, marks[i].mark, marks[i].pattern)
		}
		if got == "-" {
			continue
		}
		// The gate hands on 16 words, none of them in a register for floating-point numbers. Of
		// the driver's functions these alone take one: names/make.py looks.
		if slices.Contains([]string{"cuParamSetf", "cuTexRefSetMipmapLevelBias", "cuTexRefSetMipmapLevelClamp"}, name) {
			t.Errorf("%s takes a floating-point number", name)
		}
		if n, err := strconv.Atoi(strings.Join(words[2:], " ")); err != nil || n < 1 || n > 16 {
			t.Errorf("%s: %q words of arguments", name, words[2:])
		}
	}
	names := 0
	for i, n := range decided {
		names += n
		if n == 0 {
			t.Errorf("no name has the rule %s", marks[i].pattern)
		}
	}
	if names < 700 {
		t.Errorf("%d names", names)
	}
}

// TestServedFunctionsPassTheGate: those that are marked and served pass it in front.c, around the
// driver's call alone: what they ask of the pools may wait for memory.
func TestServedFunctionsPassTheGate(t *testing.T) {
	front, err := os.ReadFile("front/front.c")
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	for _, m := range regexp.MustCompile(`(?m)^API (cu\w+)\([^;]*?\) (\{.*\}|\{.*\n(?:.*\n)*?\})(?: //.*)?$`).FindAllStringSubmatch(string(front), -1) {
		name, body := m[1], m[2]
		i := markOf(name)
		marked := i >= 0 && marks[i].mark != "-"
		if passes := strings.Contains(body, "PASSING(r."+name+"("); passes != marked {
			t.Errorf("%s: passes the gate: %v, marked: %v", name, passes, marked)
		}
		served++
	}
	if all := strings.Count(string(front), "\nAPI cu"); served != all-3 { // three are declared before
		t.Errorf("%d of %d served functions are read", served, all)
	}
}
