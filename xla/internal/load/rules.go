package load

// Attributes of instructions as rules: the key in the text, the field in the message, and the
// form that turns one into the other. Reading and writing both follow them. Keys are XLA's names for
// the fields, but for those whose name stands beside the number.

import (
	"strconv"
	"strings"

	"gpumem/xla/internal/hlo"
)

// A rule is an attribute and the field that has it.
type rule struct {
	key   string
	field no
	form  form
}

// A form is how a field stands in a text.
type form struct {
	// read returns the text of a field, which is not shown if it is empty.
	read func(f *fields, n no) string
	// write appends the field of a text. It is nil for attributes that no planner adds.
	write func(b []byte, n no, text string) []byte
	// inside are the rules of a message, whose attributes the instruction has.
	inside []rule
	// evenEmpty is set if an empty text is shown, too.
	evenEmpty bool
}

func as(read func(f *fields, n no) string) form { return form{read: read} }

func inside(rules ...rule) form { return form{inside: rules} }

// appendAttributes appends the attributes that rules read from fields.
func appendAttributes(list []hlo.Attribute, f *fields, rules []rule) []hlo.Attribute {
	for _, r := range rules {
		if r.form.inside != nil {
			list = appendAttributes(list, f.message(r.field), r.form.inside)
		} else if text := r.form.read(f, r.field); text != "" || r.form.evenEmpty {
			list = append(list, hlo.Attribute{Key: r.key, Value: text})
		}
	}
	return list
}

// Forms that are shown even where the field is missing, but for someInts.
var (
	integer = form{
		read: func(f *fields, n no) string { return number(f.int(n)) },
		write: func(b []byte, n no, text string) []byte {
			v, _ := strconv.ParseInt(text, 10, 64)
			return appendInt(b, n, v)
		},
	}
	integers = form{
		read: func(f *fields, n no) string { return braced(f.ints(n)) },
		write: func(b []byte, n no, text string) []byte {
			var list []int64
			for s := range strings.SplitSeq(strings.Trim(text, "{}"), ",") {
				if v, err := strconv.ParseInt(s, 10, 64); err == nil {
					list = append(list, v)
				}
			}
			return appendInts(b, n, list)
		},
	}
	word = form{
		read:      func(f *fields, n no) string { return f.string(n) },
		write:     func(b []byte, n no, text string) []byte { return appendBytes(b, n, []byte(text)) },
		evenEmpty: true,
	}
	boolean    = as(func(f *fields, n no) string { return strconv.FormatBool(f.bool(n)) })
	quotedWord = as(func(f *fields, n no) string { return quoted(f.string(n)) })
	someInts   = as(func(f *fields, n no) string { return strings.TrimSuffix(braced(f.ints(n)), "{}") })
)

func isTrue(f *fields, n no) string {
	if f.bool(n) {
		return "true"
	}
	return ""
}

func firstInt(f *fields, n no) string {
	first, _, _ := strings.Cut(joinNumbers(f.ints(n)), ",")
	return first
}

func someInt(f *fields, n no) string {
	if v := f.int(n); v != 0 {
		return number(v)
	}
	return ""
}

func someWord(f *fields, n no) string {
	if s := f.string(n); s != "" {
		return quoted(s)
	}
	return ""
}

// enum is the form of an enum with those names, enumAbove that of one of which those up to usual
// are not shown, and above that of a number.
func enum(names ...string) form {
	return as(func(f *fields, n no) string { return enumName(f.int(n), names...) })
}

func enumAbove(usual int64, names ...string) form {
	return as(func(f *fields, n no) string {
		if v := f.int(n); v > usual {
			return enumName(v, names...)
		}
		return ""
	})
}

func above(usual int64) form { return enumAbove(usual) }

// Rules of several opcodes.
var (
	dimensions     = rule{"dimensions", instructionDimensions, integers}
	someDimensions = rule{"dimensions", instructionDimensions, someInts}
	isStable       = rule{"is_stable", 60, as(isTrue)}
	channel        = rule{"channel_id", 26, above(0)}
	layoutIsFixed  = rule{"constrain_layout", instructionConstrainLayout, as(isTrue)}
	dynamicSizes   = rule{"slice_sizes", 20 /* dynamic_slice_sizes */, someInts}
	prefetch       = rule{"cross_program_prefetch_index", 80, as(presentInt)}
	globalDevices  = rule{"use_global_device_ids", 71, as(isTrue)}
	replicaGroups  = rule{"replica_groups", instructionReplicaGroups, as(deviceGroups)}
	window         = rule{"window", 15, inside(rule{"window", 1, as(windowText)})}
	aliasing       = rule{"output_to_operand_aliasing", 74 /* output_operand_aliasing */, as(outputAliases)}
	precision      = rule{"precision_config", 51, inside(
		rule{"operand_precision", 1, as(operandPrecisions)},
		rule{"algorithm", 2, enumAbove(0, "unset", "dot_any_f8_any_f8_f32", "dot_any_f8_any_f8_f32_fast_accum", "dot_f16_f16_f16",
			"dot_f16_f16_f32", "dot_bf16_bf16_bf16", "dot_bf16_bf16_f32", "dot_bf16_bf16_f32_x3", "dot_bf16_bf16_f32_x6",
			"dot_tf32_tf32_f32", "dot_tf32_tf32_f32_x3", "dot_f32_f32_f32", "dot_f64_f64_f64", "dot_bf16_bf16_f32_x9")},
	)}

	windowed     = []rule{window}
	dimensioned  = []rule{dimensions}
	transfer     = []rule{channel, {"is_host_transfer", 47, as(isTrue)}}
	collective   = []rule{channel, replicaGroups, layoutIsFixed, globalDevices, someDimensions}
	indexed      = []rule{{"indices_are_sorted", 67, as(isTrue)}, {"unique_indices", 69, as(isTrue)}}
	batchNorm    = []rule{{"epsilon", 24, as(epsilon)}, {"feature_index", 25, integer}}
	convolutions = []rule{window, {"dim_labels", 16 /* convolution_dimension_numbers */, as(dimLabels)},
		{"feature_group_count", 50, above(1)}, {"batch_group_count", 58, above(1)}, precision}
)

// opcodeRules are the attributes of opcodes, whose names are without -start, in the order of XLA's printer.
var opcodeRules = map[hlo.Opcode][]rule{
	hlo.Parameter:        {{"parameter_replication", 61, inside(rule{"parameter_replication", 1, as(booleanList)})}},
	hlo.GetTupleElement:  {{"index", instructionTupleIndex, integer}},
	hlo.Iota:             {{"iota_dimension", instructionDimensions, as(firstInt)}},
	hlo.Reverse:          dimensioned,
	hlo.Concatenate:      dimensioned,
	hlo.Reduce:           dimensioned,
	hlo.Transpose:        dimensioned,
	hlo.Broadcast:        dimensioned,
	hlo.Map:              dimensioned,
	"get-dimension-size": dimensioned,
	hlo.SetDimensionSize: dimensioned,
	hlo.Sort:             {dimensions, isStable},
	hlo.Reshape:          {{"inferred_dimension", instructionDimensions, as(firstInt)}},
	// Up to 2025 comparison_type said how to compare, then comparison_order, see finish.
	hlo.Compare:          {{"direction", 63 /* comparison_direction */, word}, {"type", 72 /* comparison_type */, as(totalOrder)}},
	hlo.Slice:            {{"slice", 17 /* slice_dimensions */, as(sliceText)}},
	hlo.DynamicSlice:     {{"dynamic_slice_sizes", 20, integers}},
	hlo.Pad:              {{"padding_config", 21, inside(rule{"padding", 1, form{read: paddingText, evenEmpty: true}})}},
	hlo.ReduceWindow:     windowed,
	hlo.SelectAndScatter: windowed,
	hlo.Convolution:      convolutions,
	hlo.Dot: {{"dot_dimension_numbers", 30, inside(
		// Dimensions that are contracted are printed even where there are none.
		rule{"lhs_batch_dims", 3, someInts}, rule{"lhs_contracting_dims", 1, integers},
		rule{"rhs_batch_dims", 4, someInts}, rule{"rhs_contracting_dims", 2, integers})}, precision},
	hlo.Gather: append([]rule{{"gather_dimension_numbers", 33, inside(
		rule{"offset_dims", 1, integers}, rule{"collapsed_slice_dims", 2, integers}, rule{"start_index_map", 3, integers},
		rule{"operand_batching_dims", 5, someInts}, rule{"start_indices_batching_dims", 6, someInts},
		rule{"index_vector_dim", 4, integer})}, {"slice_sizes", 34 /* gather_slice_sizes */, integers}}, indexed...),
	hlo.Scatter: append([]rule{{"scatter_dimension_numbers", 48, inside(
		rule{"update_window_dims", 1, integers}, rule{"inserted_window_dims", 2, integers}, rule{"scatter_dims_to_operand_dims", 3, integers},
		rule{"input_batching_dims", 5, someInts}, rule{"scatter_indices_batching_dims", 6, someInts},
		rule{"index_vector_dim", 4, integer})}}, indexed...),
	hlo.Fusion: {{"kind", 11 /* fusion_kind */, word}, aliasing},
	hlo.CustomCall: append(convolutions[:len(convolutions):len(convolutions)], []rule{{"custom_call_target", 28, quotedWord},
		{"operand_layout_constraints", 57 /* operand_shapes_with_layout */, as(layoutConstraints)},
		{"custom_call_has_side_effect", 65, as(isTrue)},
		{"schedule", 76 /* custom_call_schedule */, enumAbove(0, "SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST")}, aliasing,
		{"api_version", 77 /* custom_call_api_version */, enumAbove(1, "", "",
			"API_VERSION_STATUS_RETURNING", "API_VERSION_STATUS_RETURNING_UNIFIED", "API_VERSION_TYPED_FFI")}}...),
	hlo.Rng:                  {{"distribution", 23, enum("rng_invalid", "rng_uniform", "rng_normal")}},
	hlo.RngBitGenerator:      {{"algorithm", 70 /* rng_algorithm */, enum("rng_default", "rng_three_fry", "rng_philox")}},
	hlo.RngGetAndUpdateState: {{"delta", 66, integer}},
	"reduce-precision":       {{"exponent_bits", 18, integer}, {"mantissa_bits", 19, integer}},
	"batch-norm-training":    batchNorm,
	"batch-norm-inference":   batchNorm,
	"batch-norm-grad":        batchNorm,
	"fft":                    {{"fft_type", 31, enum("FFT", "IFFT", "RFFT", "IRFFT")}, {"fft_length", 32, integers}},
	hlo.TriangularSolve: {{"triangular_solve_options", 59, inside(
		rule{"left_side", 1, as(isTrue)}, rule{"lower", 2, as(isTrue)}, rule{"unit_diagonal", 3, as(isTrue)},
		rule{"transpose_a", 4, enumAbove(0, "TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")})}},
	"cholesky":  {{"cholesky_options", 62, inside(rule{"lower", 1, as(isTrue)})}},
	"topk":      {{"k", 81, integer}, {"largest", 85, boolean}, isStable},
	hlo.Infeed:  {{"infeed_config", 27, as(infeedConfig)}},
	hlo.Outfeed: {{"outfeed_shape", 29, as(lastShape)}, {"outfeed_config", 22, as(outfeedConfig)}},
	hlo.Domain:  {{"domain", 55 /* domain_exit_sharding */, as(domain)}},

	"send": transfer, "send-done": transfer, "recv": transfer, "recv-done": transfer,
	"copy": {prefetch}, "copy-done": {prefetch},
	"async":              {{"async_execution_thread", 79, as(otherThread)}},
	hlo.AsyncDone:        {{"async_execution_thread", 79, as(threadOfStart)}},
	"collective-permute": {channel, {"source_target_pairs", 52, as(sourceTargetPairs)}, dynamicSizes},
	"all-reduce":         {channel, replicaGroups, layoutIsFixed, globalDevices},
	"all-gather":         {channel, replicaGroups, layoutIsFixed, someDimensions, globalDevices},
	"reduce-scatter":     collective, "all-to-all": collective, "collective-broadcast": collective, "ragged-all-to-all": collective,
}

// commonRules are the attributes that any instruction may have, but for its backend_config.
var commonRules = []rule{
	{"sharding", 40, as(wholeSharding)},
	{"frontend_attributes", 68, as(func(f *fields, n no) string { return stringMap(f.message(n)) })},
	{"metadata", 7, as(func(f *fields, n no) string { return joined(f.message(n), metadataRules) })},
}

// Rules of messages in a text: OpMetadata, and FileLocation and StackFrame of a module's
// stack_frame_index.
var (
	metadataRules = []rule{
		{"op_type", 1, as(someWord)}, {"op_name", 2, as(someWord)}, {"source_file", 3, as(someWord)}, {"source_line", 4, as(someInt)},
		{"source_end_line", 17, as(someInt)}, {"source_column", 18, as(someInt)}, {"source_end_column", 19, as(someInt)},
		{"deduplicated_name", 12, as(someWord)}, {"scheduling_name", 16, as(someWord)}, {"stack_frame_id", 15, as(someInt)},
	}
	locationRules = []rule{
		{"file_name_id", 1, integer}, {"function_name_id", 2, integer},
		{"line", 3, integer}, {"end_line", 5, integer}, {"column", 4, integer}, {"end_column", 6, integer},
	}
	frameRules = []rule{
		{"file_location_id", 1, integer},
		// The text counts parents from 1 on, so that 1 is none.
		{"parent_frame_id", 2, as(func(f *fields, n no) string { return number(f.int(n) + 1) })},
	}
)

// joined is the text of a message by rules: {key=value key=value}, empty if nothing is shown.
func joined(f *fields, rules []rule) string {
	var b []byte
	for _, r := range rules {
		if text := r.form.read(f, r.field); text != "" {
			b = append(append(append(append(b, ' '), r.key...), '='), text...)
		}
	}
	if len(b) == 0 {
		return ""
	}
	b[0] = '{'
	return string(append(b, '}'))
}
