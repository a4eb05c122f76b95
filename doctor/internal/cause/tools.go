package cause

// The tools of a place: causes write what NVIDIA's GPUs and Linux have, and tools.txt says what
// stands for it elsewhere.

import (
	_ "embed"
	"slices"
	"strings"
)

//go:embed tools.txt
var toolsText string

// A tool is what a place has instead of some words.
type tool struct {
	places         []string
	words, instead string
}

var tools = parseTools(toolsText)

func parseTools(text string) (all []tool) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) == 3 && f[0][0] != '#' {
			all = append(all, tool{strings.Fields(f[0]), f[1], f[2]})
		}
	}
	return all
}

// at reports whether the log shows a place.
func (c *view) at(place string) bool {
	switch place {
	case "windows":
		return c.Place.Windows && !c.Place.WSL
	case "wsl":
		return c.Place.WSL
	case "other":
		return c.vendor != "" && c.vendor != "nvidia"
	case "draws":
		return c.Uses("directx", "vulkan", "opengl", "webgl", "unreal", "unity", "blender", "renderer")
	}
	return place != "" && c.vendor == place
}

// here are the tools of the places that the log shows.
func (c *view) here() (list []tool) {
	for _, t := range tools {
		if !slices.ContainsFunc(t.places, func(place string) bool { return !c.at(place) }) {
			list = append(list, t)
		}
	}
	return list
}

// fitted is a text in the words of the place, empty if the place has nothing for it.
func fitted(text string, list []tool) string {
	for _, t := range list {
		switch {
		case !strings.Contains(text, t.words):
		case t.instead == "-":
			return ""
		default:
			text = strings.ReplaceAll(text, t.words, t.instead)
		}
	}
	return text
}

// fitTools puts the tools of the place into what is to be done.
func (c *view) fitTools(all []Explanation) {
	list := c.here()
	for i := range all {
		x := &all[i]
		x.Decide = Command(fitted(string(x.Decide), list))
		var said []string
		for _, s := range x.Remedy.Steps {
			if s = fitted(s, list); s != "" {
				said = append(said, s)
			}
		}
		x.Remedy.Steps = said
		if c.at("windows") {
			x.Remedy.Check = "" // which is a line of a POSIX shell
		}
	}
}
