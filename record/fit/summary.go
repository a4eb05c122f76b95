package fit

import (
	"strings"

	"gpumem/record/advise"
	"gpumem/size"
)

// Summary is the answer in short, the same for programs, modules and recordings. What
// stands in the reports around it is where it comes from.
type Summary struct {
	// Fits reports whether there is a way to fit: as it is, with a setting of the
	// framework, or with this project's pool. Settings names it.
	Fits      bool   `json:"fits"`
	PeakBytes uint64 `json:"peak_bytes"`    // live at the peak of the GPU with the most
	Outside   uint64 `json:"outside_bytes"` // outside the pool: assumed, and the constants of a module
	Contents  []item `json:"parts"`         // what fills the peak, as far as it is known
	// SmallestDevice is the smallest device of all settings of the framework, without this
	// project's pool; nil if there is none, or if the program grows and is to make more steps than ran.
	SmallestDevice *uint64 `json:"smallest_device_bytes"`
	Card           string  `json:"card"` // the smallest one, such as 16 GiB; "" if there is none
	// Settings are those with which it fits; none if it fits as it is, or not at all.
	// Without a framework it is policy and its name, with this project's pool the command.
	Settings []pair `json:"settings"`
	// Refusal is the request that is the first to be refused as it is; nil if none is.
	Refusal *refusal `json:"refused"`
	For     uint64   `json:"for_steps,omitempty"` // see Config; Fits holds for them
	Doubts  []Doubt  `json:"doubts"`              // why the answer may not hold, of this program
	Differs []string `json:"differs"`             // how this is not a run on a card, whatever the program
	Largest *string  `json:"largest,omitempty"`   // of the values, see RunVary
}

// item is a part of the peak.
type item struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
}

// pair is a setting. A statement for the program and a command have no name.
type pair struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// refusal is a request that is refused, and the function or the line that makes it.
type refusal struct {
	Bytes uint64 `json:"bytes"`
	Where string `json:"where"`
}

// summarize makes the summary of an answer.
func summarize(r *advise.Report, peak uint64, parts []item, where string) Summary {
	s := Summary{
		Fits: r.Advice != nil, PeakBytes: peak, Outside: r.ContextBytes + r.ConstantBytes, Contents: parts,
		Settings: settings(r), Doubts: []Doubt{}, Differs: []string{},
	}
	if s.Contents == nil {
		s.Contents = []item{}
	}
	for _, c := range r.Candidates {
		if d := c.SmallestDevice; d != nil && !c.Ours && (s.SmallestDevice == nil || *d < *s.SmallestDevice) {
			s.SmallestDevice = d
		}
	}
	if r.SmallestCard != nil {
		s.Card = size.Format(*r.SmallestCard)
	}
	if first := r.Candidates[0]; first.FirstRefused != nil {
		s.Refusal = &refusal{first.RefusedBytes, where}
	}
	return s
}

// settings returns those of Summary.
func settings(r *advise.Report) []pair {
	list := []pair{}
	a := r.Advice
	if a == nil || r.FitsAsItIs {
		return list
	}
	for _, set := range a.Set {
		name, value, _ := strings.Cut(set, "=")
		list = append(list, pair{name, value})
	}
	for _, call := range a.Call {
		list = append(list, pair{Value: call})
	}
	if a.Run != "" {
		list = append(list, pair{Value: a.Run})
	}
	if len(list) == 0 {
		list = append(list, pair{policySetting, a.Policy})
	}
	return list
}

// policySetting is the name of a pair that no framework has.
const policySetting = "policy"

// lineOf returns settings as a person writes them.
func lineOf(list []pair) []string {
	words := []string{}
	for _, p := range list {
		switch p.Name {
		case "":
			words = append(words, p.Value)
		case policySetting:
			words = append(words, p.Name+" "+p.Value)
		default:
			words = append(words, p.Name+"="+p.Value)
		}
	}
	return words
}

// summarize makes the summary of a program.
func (r *Report) summarize() Summary {
	var parts []item
	where := ""
	for _, p := range r.Peak().Parts {
		parts = append(parts, item{strings.TrimSpace(string(p.Kind) + " " + p.Name), p.Bytes})
	}
	if len(parts) == 0 {
		parts = items(r.Program.Lines)
	}
	if r.Breaks != nil {
		where = r.Breaks.Function
	}
	s := summarize(r.Report, r.Peak().Bytes, parts, where)
	s.Differs = r.Differences()
	return s
}

// summarize makes the summary of a file.
func (r *FileReport) summarize() Summary {
	where := ""
	if r.Refused != nil {
		where = strings.TrimSpace(r.Refused.What + " " + r.Refused.Where)
	}
	return summarize(r.Report, r.Trace.PeakLive, items(r.Peak), where)
}

func items(list []Place) (parts []item) {
	for _, p := range list {
		parts = append(parts, item{strings.TrimSpace(p.What + " " + p.Where), p.Bytes})
	}
	return parts
}
