package torch

// The settings of the recorded program's allocator.

import (
	"fmt"
	"strings"
)

// settings returns those that a snapshot has in allocator_settings, as PyTorch writes them in
// PYTORCH_ALLOC_CONF: the program's own text if it is there, else one from the values.
func settings(v any) string {
	s, ok := v.(*dict)
	if !ok {
		return ""
	}
	for _, name := range []string{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} {
		if text := stringField(s, name); text != "" {
			return text
		}
	}
	var list []string
	if on, _ := s.get("expandable_segments"); on == true {
		list = append(list, "expandable_segments:True")
	}
	if n, ok := sizeField(s, "max_split_size"); ok && n < 1<<60 {
		list = append(list, fmt.Sprintf("max_split_size_mb:%d", n>>20))
	}
	if f, _ := s.get("garbage_collection_threshold"); f != nil {
		if f, ok := f.(float64); ok && f > 0 && f < 1 {
			list = append(list, fmt.Sprintf("garbage_collection_threshold:%v", f))
		}
	}
	if text := divisions(s); text != "" {
		list = append(list, "roundup_power2_divisions:"+text)
	}
	return strings.Join(list, ",")
}

// divisions returns those of roundup_power2_divisions that are not off, as a list; "" if none is.
func divisions(s *dict) string {
	v, _ := s.get("roundup_power2_divisions")
	d, ok := v.(*dict)
	if !ok {
		return ""
	}
	var list []string
	for mib := 1; mib <= 1<<15; mib *= 2 {
		key := fmt.Sprint(mib)
		if n, ok := sizeField(d, key); ok && n > 1 {
			list = append(list, fmt.Sprintf("%s:%d", key, n))
		}
	}
	if list == nil {
		return ""
	}
	return "[" + strings.Join(list, ",") + "]"
}
