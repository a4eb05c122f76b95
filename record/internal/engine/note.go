// What the processes of an engine have noted at its start, see engines.py of package fit.

package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Note is what one process of an engine has noted. Sizes are bytes.
type Note struct {
	Engine  string             `json:"engine"`
	Version string             `json:"version"`
	Set     []string           `json:"set"`     // environment variables, NAME=value
	Options map[string]any     `json:"options"` // of the engine, that are not the program's own
	Given   map[string]any     `json:"given"`   // of those that an engine else chooses by the card, what it was given
	Config  *config            `json:"config"`  // of the process that has the scheduler
	Cache   *cache             `json:"cache"`   // the same
	Worker  *worker            `json:"worker"`  // of a process on a GPU
	Stages  map[string][]state `json:"stages"`  // memory before and after each step of the start
	Results map[string]int64   `json:"results"` // of some of these steps, as the engine has them
	Apart   map[string]int64   `json:"apart"`   // what PyTorch's pools of graphs grew by in some steps, if it says so
	Once    map[string]uint64  `json:"once"`    // of the peak of some steps, what a compiler took to time kernels
	Counts  map[string]int     `json:"compiled"`
	Ready   bool               `json:"ready"`
	Error   string             `json:"error"` // why it is not ready

	// Recorded is what the recording of the process has live at its end; 0 if there is none.
	Recorded uint64 `json:"-"`
	// On is the size of the simulated GPUs; 0 if it is not known.
	On uint64 `json:"-"`

	odd []string // what is there and is no such figure, which is taken as unknown: "name: the engine says -1"
}

// config has the engine's own names.
type config struct {
	Model       string  `json:"model"`
	DType       string  `json:"dtype"`
	Quantized   string  `json:"quantization"`
	MaxLen      uint64  `json:"max_model_len"`
	Positions   uint64  `json:"max_position_embeddings"` // of the model; 0 if unknown
	Utilization float64 `json:"gpu_memory_utilization"`
	CacheType   string  `json:"cache_dtype"`
	CacheBytes  uint64  `json:"kv_cache_memory_bytes"` // given; 0 if the engine finds them
	MaxSeqs     uint64  `json:"max_num_seqs"`
	MaxBatched  uint64  `json:"max_num_batched_tokens"`
	Decoding    uint64  `json:"decode_context_parallel_size"` // GPUs that share the cache of a request
	Prefilling  uint64  `json:"prefill_context_parallel_size"`
}

// cache is the engine's own count of its KV cache.
type cache struct {
	Tokens   uint64  `json:"kv_cache_size_tokens"`
	Requests float64 `json:"kv_cache_max_concurrency"` // of the greatest length, at once
	Blocks   uint64  `json:"num_blocks"`
	Groups   [][]any `json:"groups"` // the kind of each group of layers, and tokens a block
	// Longest is the longest context of one request, and of eight at once; empty if unknown.
	Longest []uint64 `json:"longest"`
	// Least are the tokens with which the engine starts at least, for layers that keep a window of each request; 0 if
	// there are none.
	Least uint64 `json:"least_tokens"`
}

// worker is what an engine has measured on a GPU.
type worker struct {
	Rank      int     `json:"rank"`
	Requested float64 `json:"requested_memory"` // the part of the card that it may take
	Weights   uint64  `json:"model_memory_usage"`
	Params    uint64  `json:"parameters"` // of the model, with its buffers; 0 if unknown
	Graphs    int64   `json:"cudagraph_memory_estimate"`
	Available float64 `json:"available_kv_cache_memory_bytes"`
	Total     uint64  `json:"init_total_memory"`
	Free      uint64  `json:"init_free_memory"`
	End       uint64  `json:"end_free_memory"`     // when it is ready, where the engine goes by free memory; else 0
	Table     uint64  `json:"request_table_bytes"` // beside the KV cache
	Cache     uint64  `json:"kv_cache_bytes"`
}

// state is the memory of a process at one moment.
type state struct {
	Allocated uint64 `json:"allocated"` // by PyTorch's allocator, in whole blocks
	Requested uint64 `json:"requested"` // of it, as the program asked for it
	Reserved  uint64 `json:"reserved"`
	Peak      uint64 `json:"peak"` // allocated, since it was reset
	Free      uint64 `json:"free"` // by the driver
	Total     uint64 `json:"total"`
}

// The steps of a start, by the names of the engine's functions.
const (
	loading   = "load_model"
	profiling = "determine_available_memory"
	running   = "profile_run" // in profiling
	caching   = "initialize_from_config"
	warming   = "compile_or_warm_up_model"
	capturing = "capture_model" // in warming
)

// grown returns by how much the allocated bytes grew in a step; ok is false if it was not completed.
func (n *Note) grown(step string) (bytes uint64, ok bool) {
	s := n.Stages[step]
	if len(s) < 2 {
		return 0, false
	}
	return s[1].Allocated - min(s[0].Allocated, s[1].Allocated), true
}

// Read reads the note of a process. It is nil if there is none.
func Read(path string) (*Note, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parse(text)
}

// words are the strings of JSON, and the numbers that Python writes and JSON has not.
var words = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?Infinity|NaN`)

// parse reads a note. What is odd in it is unknown, but for what no answer is without.
func parse(text []byte) (*Note, error) {
	text = words.ReplaceAllFunc(text, func(word []byte) []byte {
		if word[0] == '"' {
			return word
		}
		return fmt.Appendf(nil, "%q", word)
	})
	var from map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&from); err != nil {
		return nil, fmt.Errorf("it is not whole: %w", err)
	}
	n := new(Note)
	n.odd = fill(reflect.ValueOf(n).Elem(), from, "")
	slices.Sort(n.odd)
	for _, odd := range n.odd {
		name, _, _ := strings.Cut(odd, ":")
		if slices.Contains(needed, name) {
			return nil, errors.New(odd)
		}
	}
	return n, nil
}

// needed are figures without which there is no answer.
var needed = []string{"config", "cache", "worker", "max_model_len", "kv_cache_size_tokens", "model_memory_usage", "kv_cache_bytes"}

// fill sets a value to what JSON has, and returns what is no such value.
func fill(to reflect.Value, from any, name string) (odd []string) {
	if from == nil {
		return nil
	}
	ok := true
	switch to.Kind() {
	case reflect.Interface:
		to.Set(reflect.ValueOf(from))
	case reflect.Pointer:
		value := reflect.New(to.Type().Elem())
		if odd = fill(value.Elem(), from, name); isObject(from) {
			to.Set(value)
		}
	case reflect.Struct, reflect.Map:
		var object map[string]any
		if object, ok = from.(map[string]any); ok {
			odd = fillObject(to, object)
		}
	case reflect.Slice:
		var list []any
		list, ok = from.([]any)
		values := reflect.MakeSlice(to.Type(), len(list), len(list))
		for i, x := range list {
			odd = append(odd, fill(values.Index(i), x, name)...)
		}
		if len(odd) == 0 && ok {
			to.Set(values)
		}
	default:
		ok = fillPlain(to, from)
	}
	if !ok {
		return []string{fmt.Sprintf("%s: the engine says %.60v", name, from)}
	}
	return odd
}

func isObject(from any) bool {
	_, ok := from.(map[string]any)
	return ok
}

// fillObject sets the fields of a struct, or a map, by their names.
func fillObject(to reflect.Value, from map[string]any) (odd []string) {
	if to.Kind() == reflect.Struct {
		for i := range to.NumField() {
			if name := to.Type().Field(i).Tag.Get("json"); name != "" && name != "-" {
				odd = append(odd, fill(to.Field(i), from[name], name)...)
			}
		}
		return odd
	}
	to.Set(reflect.MakeMap(to.Type()))
	for name, x := range from {
		value := reflect.New(to.Type().Elem()).Elem()
		if bad := fill(value, x, name); len(bad) > 0 {
			odd = append(odd, bad...)
			continue
		}
		to.SetMapIndex(reflect.ValueOf(name), value)
	}
	return odd
}

// fillPlain sets a word, a truth or a number, of which a whole one may be written as a float.
func fillPlain(to reflect.Value, from any) bool {
	switch x := from.(type) {
	case string:
		if to.Kind() == reflect.String {
			to.SetString(x)
			return true
		}
	case bool:
		if to.Kind() == reflect.Bool {
			to.SetBool(x)
			return true
		}
	case json.Number:
		return fillNumber(to, string(x))
	}
	return false
}

func fillNumber(to reflect.Value, text string) bool {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return false // it is too large
	}
	isWhole := f == math.Trunc(f) && math.Abs(f) < 1<<62
	switch {
	case to.CanFloat():
		to.SetFloat(f)
	case to.CanInt() && isWhole:
		to.SetInt(int64(f))
	case to.CanUint() && isWhole && f >= 0:
		to.SetUint(uint64(f))
	default:
		return false
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil { // more exact than a float
		switch {
		case to.CanInt():
			to.SetInt(n)
		case to.CanUint():
			to.SetUint(uint64(n))
		}
	}
	return true
}
