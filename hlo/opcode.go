package hlo

import "strings"

// An Opcode is the name of an operation, as printed. Opcodes that are not named
// here are allowed.
type Opcode string

// The opcodes that the package or its users treat in a way of their own.
const (
	Abs                  Opcode = "abs"
	Add                  Opcode = "add"
	AddDependency        Opcode = "add-dependency"
	AllGather            Opcode = "all-gather"
	AllReduce            Opcode = "all-reduce"
	AllToAll             Opcode = "all-to-all"
	AsyncStart           Opcode = "async-start"
	AsyncUpdate          Opcode = "async-update"
	AsyncDone            Opcode = "async-done"
	Bitcast              Opcode = "bitcast"
	Broadcast            Opcode = "broadcast"
	Call                 Opcode = "call"
	CollectiveBroadcast  Opcode = "collective-broadcast"
	CollectivePermute    Opcode = "collective-permute"
	Compare              Opcode = "compare"
	Concatenate          Opcode = "concatenate"
	Conditional          Opcode = "conditional"
	Constant             Opcode = "constant"
	Convert              Opcode = "convert"
	Convolution          Opcode = "convolution"
	Copy                 Opcode = "copy"
	CopyDone             Opcode = "copy-done"
	CopyStart            Opcode = "copy-start"
	CustomCall           Opcode = "custom-call"
	Domain               Opcode = "domain"
	Dot                  Opcode = "dot"
	DynamicReshape       Opcode = "dynamic-reshape"
	DynamicSlice         Opcode = "dynamic-slice"
	DynamicUpdateSlice   Opcode = "dynamic-update-slice"
	Fusion               Opcode = "fusion"
	Gather               Opcode = "gather"
	GetTupleElement      Opcode = "get-tuple-element"
	Infeed               Opcode = "infeed"
	Iota                 Opcode = "iota"
	Map                  Opcode = "map"
	Multiply             Opcode = "multiply"
	OptBarrier           Opcode = "opt-barrier"
	Outfeed              Opcode = "outfeed"
	Pad                  Opcode = "pad"
	Parameter            Opcode = "parameter"
	Recv                 Opcode = "recv"
	RecvDone             Opcode = "recv-done"
	Reduce               Opcode = "reduce"
	ReduceScatter        Opcode = "reduce-scatter"
	ReduceWindow         Opcode = "reduce-window"
	Reshape              Opcode = "reshape"
	Reverse              Opcode = "reverse"
	Rng                  Opcode = "rng"
	RngBitGenerator      Opcode = "rng-bit-generator"
	RngGetAndUpdateState Opcode = "rng-get-and-update-state"
	Scatter              Opcode = "scatter"
	Select               Opcode = "select"
	SelectAndScatter     Opcode = "select-and-scatter"
	Send                 Opcode = "send"
	SendDone             Opcode = "send-done"
	SetDimensionSize     Opcode = "set-dimension-size"
	Slice                Opcode = "slice"
	Sort                 Opcode = "sort"
	Subtract             Opcode = "subtract"
	Transpose            Opcode = "transpose"
	TriangularSolve      Opcode = "triangular-solve"
	TupleOp              Opcode = "tuple"
	While                Opcode = "while"
)

// IsAsyncStart says whether the opcode begins an asynchronous operation: async-start,
// a generic one such as call-start, or a native pair's such as all-gather-start.
func (o Opcode) IsAsyncStart() bool { return strings.HasSuffix(string(o), "-start") }

// IsAsyncDone says whether it ends one.
func (o Opcode) IsAsyncDone() bool { return strings.HasSuffix(string(o), "-done") }
