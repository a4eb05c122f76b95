package hlo

import "strings"

// An Opcode is the name of an operation, as printed. Opcodes that are not named
// here are allowed.
type Opcode string

// The opcodes that this package or its users treat in a special way.
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

// IsAsyncStart reports whether the opcode begins an asynchronous operation: async-start,
// a generic one such as call-start, or a native pair's such as all-gather-start.
func (o Opcode) IsAsyncStart() bool { return strings.HasSuffix(string(o), "-start") }

// IsAsyncUpdate reports whether the opcode continues an asynchronous operation.
func (o Opcode) IsAsyncUpdate() bool { return strings.HasSuffix(string(o), "-update") }

// IsAsyncDone reports whether the opcode ends an asynchronous operation.
func (o Opcode) IsAsyncDone() bool { return strings.HasSuffix(string(o), "-done") }

// WrapsStart reports whether the opcode begins an asynchronous operation that wraps
// another one, such as async-start and call-start. The starts that XLA has as operations
// by themselves, such as copy-start, do not.
func (o Opcode) WrapsStart() bool { return o.IsAsyncStart() && !o.paired() }

// WrapsEnd reports whether the opcode continues or ends such an operation: async-update,
// async-done, call-done and so on.
func (o Opcode) WrapsEnd() bool {
	return o.IsAsyncUpdate() || o.IsAsyncDone() && o != SendDone && o != RecvDone && !o.paired()
}

// paired reports whether the opcode is of a pair that XLA has as operations by themselves.
func (o Opcode) paired() bool {
	for _, pair := range []string{"all-gather-", "all-reduce-", "collective-permute-", "copy-"} {
		if strings.HasPrefix(string(o), pair) {
			return true
		}
	}
	return false
}

// Those that compute element by element have operands of the dimensions of their result.
var (
	unary = opcodes(`abs acos acosh asin asinh atanh bitcast-convert cbrt ceil convert copy cosine cosh
		count-leading-zeros erf exponential exponential-minus-one floor imag is-finite log log-plus-one
		logistic negate not popcnt real reduce-precision round-nearest-afz round-nearest-even rsqrt sign
		sine sinh sqrt tan tanh`)
	binary = opcodes(`add and atan2 compare complex divide maximum minimum multiply or power remainder
		shift-left shift-right-arithmetic shift-right-logical subtract xor`)
)

func opcodes(names string) map[Opcode]bool {
	set := map[Opcode]bool{}
	for _, name := range strings.Fields(names) {
		set[Opcode(name)] = true
	}
	return set
}

// Unary reports whether the opcode computes each element from one of one operand.
func (o Opcode) Unary() bool { return unary[o] }

// Binary reports whether the opcode computes each element from one of each of two
// operands.
func (o Opcode) Binary() bool { return binary[o] }
