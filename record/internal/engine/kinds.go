// What is known of each engine: its name, its options, its classes.

package engine

import (
	"fmt"
	"slices"
	"strings"
)

// kind is what is known of an engine.
type kind struct {
	name  string   // of its program and of its Python package
	serve []string // the words of a command that serves a model, before the folder
	// commands are those of its program that start an engine, and makes what makes one in Python.
	commands, makes []string
	part            string // the option that says which part of the card it may take
	given           string // the option that says how many bytes its cache has, whatever that part is; "" if none does
	// ofFree: that part is of the memory that is free before the weights are loaded; else of the card. And it is
	// what is left by the rest then, so that what it measures is free memory.
	ofFree bool
	// sizes are from where on it chooses another batch by the size of the card, in GiB.
	sizes []uint64
	// chosen returns the options that it chooses by the size of the card. One of 0 is unknown.
	chosen func(*config) map[string]any
	half   string // the setting with which tokens of 16 bits are half as large; "" if it changes more
	// whole are the classes of a cache that has every token in each layer.
	whole []string
}

var engines = []kind{
	{
		name: "sglang", serve: []string{"serve", "--model-path"}, part: "mem-fraction-static", ofFree: true,
		commands: []string{"serve"}, makes: []string{"Engine", "Runtime", "launch_server"},
		sizes: []uint64{20, 35, 60, 90, 160},
		chosen: func(c *config) map[string]any {
			return map[string]any{"chunked_prefill_size": c.MaxBatched, "mem_fraction_static": c.Utilization}
		},
		half:  "--kv-cache-dtype fp8_e4m3",
		whole: []string{"MHATokenToKVPool", "MLATokenToKVPool"},
	},
	{
		name: "vllm", serve: []string{"serve"}, part: "gpu-memory-utilization", given: "kv-cache-memory-bytes",
		commands: []string{"serve", "bench", "run-batch"}, makes: []string{"LLM", "LLMEngine", "AsyncLLM", "AsyncLLMEngine", "run_server"},
		sizes: []uint64{70},
		chosen: func(c *config) map[string]any {
			return map[string]any{"max_num_batched_tokens": c.MaxBatched, "max_num_seqs": c.MaxSeqs}
		},
		whole: []string{"FullAttentionSpec", "MLAAttentionSpec"},
	},
}

// kindOf returns what is known of an engine, by its name.
func kindOf(name string) kind {
	for _, e := range engines {
		if e.name == name {
			return e
		}
	}
	return kind{name: name, chosen: func(*config) map[string]any { return nil }}
}

// Known returns the names of the engines that are known, as text for people.
func Known() string {
	names := make([]string, len(engines))
	for i, e := range engines {
		names[i] = e.name
	}
	return strings.Join(names, ", ")
}

// Chosen returns the options that an engine chose by the size of the card, by their names.
func Chosen(notes []*Note) map[string]string {
	for _, n := range notes {
		if n.Config == nil {
			continue
		}
		known := map[string]string{}
		for name, value := range kindOf(n.Engine).chosen(n.Config) {
			if text := fmt.Sprint(value); text != "0" {
				known[name] = text
			}
		}
		return known
	}
	return nil
}

// OfCard returns the names of those options that an engine chose for its card, which nobody gave it.
func OfCard(notes []*Note) (names []string) {
	for name := range Chosen(notes) {
		isGiven := func(n *Note) bool { return n.Given[name] != nil }
		if !slices.ContainsFunc(notes, isGiven) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
