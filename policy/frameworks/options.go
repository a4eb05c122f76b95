// The layer between Python and XLA: the options of PJRT_Client_Create, which of
// them a release knows, of what type, and what it says to others. Measured with
// the plugins themselves (testdata/xla/options.txt).

package frameworks

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/policy"
)

// createVar is read into options by jax/_src/xla_bridge.py: key:value;key:value.
const createVar = "JAX_PJRT_CLIENT_CREATE_OPTIONS"

// growOption is the option that says where a pool begins and how far it grows.
const growOption = "memory_fraction_policy"

// A clientOption is one that the plugin of a release knows.
type clientOption struct {
	name  string
	want  string // the type that it expects
	since policy.Version
	until policy.Version // the first release without it; zero: there is none
}

// The types of options, in the order of the indices that PJRT's errors have: of a value that
// is given, and of a type that is expected.
var (
	givenTypes = []string{"string", "bool", "int", "list", "float"}
	wantTypes  = []string{"string", "int", "list", "float", "bool"}
)

var clientOptions = []clientOption{
	{name: "platform_name", want: "string"},
	{name: "allocator", want: "string"},
	{name: "memory_fraction", want: "float"},
	{name: "preallocate", want: "bool"},
	{name: "visible_devices", want: "list"},
	{name: "node_id", want: "int"},
	{name: "num_nodes", want: "int"},
	{name: "collective_memory_size", want: "int", since: policy.Version{0, 4, 24}},
	{name: "enable_mock_nccl", want: "bool", since: policy.Version{0, 4, 26}},
	{name: "mock_gpu_topology", want: "string", since: policy.Version{0, 4, 35}},
	{name: "should_stage_host_to_device_transfers", want: "bool", since: policy.Version{0, 5, 3}},
	{name: "slice_index", want: "int", since: policy.Version{0, 6, 2}, until: policy.Version{0, 7}},
	{name: "partition_index", want: "int", since: policy.Version{0, 7}},
	{name: "abort_collectives_on_failure", want: "bool", since: policy.Version{0, 7}},
	{name: "use_tfrt_gpu_client", want: "bool", since: policy.Version{0, 7, 1}},
	{name: "max_inflight_computations", want: "int", since: policy.Version{0, 11, 1}},
	{name: growOption, want: "string", since: policy.Version{0, 12}},
	{name: "abort_collectives_timeout", want: "string", since: policy.Version{0, 12}},
}

// instead are the variables that can say what an option in
// JAX_PJRT_CLIENT_CREATE_OPTIONS cannot, being a text there.
var instead = map[string]string{"memory_fraction": fractionVar, "preallocate": preallocateVar}

// createOptions lays what JAX_PJRT_CLIENT_CREATE_OPTIONS says over options.
// Every value there is a string.
func createOptions(env policy.Environment, options []Option) ([]Option, *policy.SettingError) {
	text := env.Get(createVar)
	if text == "" {
		return options, nil
	}
	for part := range strings.SplitSeq(text, ";") {
		words := strings.Split(part, ":")
		if len(words) != 2 {
			return nil, &policy.SettingError{Name: createVar, Text: "Multiple ':' separators for option in jax_pjrt_client_create_options: '" + part + "'. Should be in format 'key:value'", Then: notInitialized}
		}
		options = setOption(options, words[0], words[1])
	}
	// xla_bridge has this one of a separate flag, and lays it over the rest.
	return setOption(options, "enable_mock_nccl", false), nil
}

// notInitialized is what becomes of an error of the client's creation.
const notInitialized = "JAX raises RuntimeError: Unable to initialize backend 'cuda', with this text"

func setOption(options []Option, name string, value any) []Option {
	for i := range options {
		if options[i].Name == name {
			options[i].Value = value
			return options
		}
	}
	return append(options, Option{name, value})
}

// checkOptions returns what the plugin of a release says to options.
func checkOptions(env policy.Environment, options []Option, v policy.Version, r jaxRelease) *policy.SettingError {
	refuse := func(name, text string) *policy.SettingError {
		from := createVar
		if name == "collective_memory_size" && env.Get(createVar) == "" {
			from = collectiveVar
		}
		return &policy.SettingError{Name: from, Text: text, Then: notInitialized}
	}
	for _, o := range options {
		known := false
		for _, c := range clientOptions {
			if c.name != o.Name || v.Less(c.since) || c.until != (policy.Version{}) && !v.Less(c.until) {
				continue
			}
			known = true
			if given := typeOf(o.Value); given != "" && given != c.want { // else see tooLarge
				err := refuse(o.Name, fmt.Sprintf("INVALID_ARGUMENT: Option passed to PJRT_Client_Create with name %s has type index %d but expected type index is %d",
					o.Name, slices.Index(givenTypes, given), slices.Index(wantTypes, c.want)))
				if text, ok := o.Value.(string); ok && instead[o.Name] != "" && !strings.Contains(env.Get(createVar), ";") {
					err.Fix = "-" + createVar + " " + assign(instead[o.Name], text)
				}
				return err
			}
		}
		if !known {
			return refuse(o.Name, "INVALID_ARGUMENT: Unexpected option name passed to PJRT_Client_Create: "+o.Name)
		}
	}
	for _, o := range options {
		switch text, _ := o.Value.(string); {
		case o.Name == "allocator" && !slices.Contains(r.Allocators, text):
			return refuse(o.Name, "UNIMPLEMENTED: Allocator "+text+" not supported for PJRT GPU plugin. Supported allocator options are: "+r.supported()+".")
		case o.Name == growOption:
			if _, _, problem := growth(text); problem != "" {
				return refuse(o.Name, "INVALID_ARGUMENT: "+growOption+": "+problem)
			}
		}
	}
	return nil
}

// typeOf returns the type of an option's value; empty for an integer that is too large.
func typeOf(v any) string {
	switch v.(type) {
	case string:
		return "string"
	case bool:
		return "bool"
	case int64:
		return "int"
	case []int64:
		return "list"
	case float64:
		return "float"
	}
	return ""
}

// supported returns the list of allocators as XLA's error has it.
func (r *jaxRelease) supported() string {
	last := len(r.Allocators) - 1
	return "'" + strings.Join(r.Allocators[:last], "', '") + "' and '" + r.Allocators[last] + "'"
}

// growth reads memory_fraction_policy: START, START+ or START-CAP.
func growth(text string) (start, most float64, problem string) {
	refuse := func(why string) (float64, float64, string) {
		return 0, 0, `Invalid memory fraction "` + text + `": ` + why + `; expected START, START+, or START-CAP as fractions of total device memory, for example "0.75" (fixed at 75%), "0.75+" (preallocate 75%, grow to all memory), or "0.75-0.85" (grow to at most 85%)`
	}
	number := func(s string) (float64, bool) {
		s = strings.Trim(s, " \t\n\v\f\r")
		if strings.ContainsAny(s, "xX_") {
			return 0, false
		}
		f, err := strconv.ParseFloat(s, 64)
		return f, err == nil && f > 0 && !math.IsInf(f, 0)
	}
	body := strings.Trim(text, " \t\n\v\f\r")
	begin, limit, ranged := body, "", false
	for i := 1; i < len(body) && !ranged; i++ { // a dash that is no exponent's
		if body[i] == '-' && body[i-1]|0x20 != 'e' {
			begin, limit, ranged = body[:i], body[i+1:], true
		}
	}
	plus := false
	if !ranged {
		begin, plus = strings.CutSuffix(body, "+")
	}
	start, ok := number(begin)
	most = start
	switch {
	case plus:
		most = 1
	case ranged:
		var ok2 bool
		most, ok2 = number(limit)
		ok = ok && ok2
	}
	switch {
	case !ok:
		return refuse("fractions must be positive numbers")
	case most < start:
		return refuse("the cap must be at least the start")
	case most > 1 && ranged && most != start:
		return refuse("a growth cap cannot exceed 1 (all of device memory)")
	}
	return start, most, ""
}
