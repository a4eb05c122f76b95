// What the processes of an engine have noted at its start, see engines.py of package fit.

package engine

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
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
}

// config has the engine's own names.
type config struct {
	Model       string  `json:"model"`
	DType       string  `json:"dtype"`
	Quantized   string  `json:"quantization"`
	MaxLen      uint64  `json:"max_model_len"`
	Positions   uint64  `json:"max_position_embeddings"` // of the model; 0 if unknown
	Eager       bool    `json:"enforce_eager"`
	Utilization float64 `json:"gpu_memory_utilization"`
	CacheType   string  `json:"cache_dtype"`
	CacheBytes  uint64  `json:"kv_cache_memory_bytes"` // given; 0 if the engine finds them
	MaxSeqs     uint64  `json:"max_num_seqs"`
	MaxBatched  uint64  `json:"max_num_batched_tokens"`
	Tensor      int     `json:"tensor_parallel_size"`
	Pipeline    int     `json:"pipeline_parallel_size"`
	Data        int     `json:"data_parallel_size"`
}

// cache is the engine's own count of its KV cache.
type cache struct {
	Tokens   uint64  `json:"kv_cache_size_tokens"`
	Requests float64 `json:"kv_cache_max_concurrency"` // of the greatest length, at once
	Blocks   uint64  `json:"num_blocks"`
	Groups   [][]any `json:"groups"` // the kind of each group of layers, and tokens a block
	// Longest is the longest context of one request, and of eight at once; empty if unknown.
	Longest []uint64 `json:"longest"`
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
	Blocks    uint64  `json:"num_blocks"`
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
	n := new(Note)
	if err == nil {
		err = json.Unmarshal(text, n)
	}
	return n, err
}
