package hlo_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	. "gpumem/xla/internal/hlo"
)

func TestAttributes(t *testing.T) {
	with := func(key, value string) *Instruction {
		return &Instruction{Name: "i", Line: 3, Opcode: While, Attributes: []Attribute{{Key: key, Value: value}}}
	}
	for value, want := range map[string][]int64{"{}": {}, "{0}": {0}, "{2, 0,1}": {2, 0, 1}, "5": {5}, "{-1}": {-1}} {
		if got, err := with("k", value).Ints("k"); err != nil || !slices.Equal(got, want) || got == nil {
			t.Errorf("%s: %v, %v", value, got, err)
		}
	}
	for _, value := range []string{"", "{", "{a}", "{1,}", "x", "{1 2}", "9223372036854775808"} {
		if got, err := with("k", value).Ints("k"); err == nil {
			t.Errorf("%q: %v, expected an error", value, got)
		}
	}
	if n, err := with("k", "1").Int("other", 7); n != 7 || err != nil {
		t.Error(n, err)
	}
	if _, err := with("k", "{1,2}").Int("k", 7); err == nil || err.Error() != "line 3: i: attribute k={1,2}: expected one number" {
		t.Error(err)
	}

	window, err := with("window", "{size=3x2 stride=2x1 pad=0_1x-1_0 lhs_dilate=1x3 rhs_dilate=2x1 rhs_reversal=0x1}").Window()
	want := []WindowDim{
		{Size: 3, Stride: 2, High: 1, BaseDilation: 1, Dilation: 2},
		{Size: 2, Stride: 1, Low: -1, BaseDilation: 3, Dilation: 1, Reversed: true},
	}
	if err != nil || !slices.Equal(window, want) {
		t.Error(window, err)
	}
	for _, bad := range []string{"", "size=3", "{size=a}", "{size=1x2 pad=1_1}", "{pad=3}", "{pad=a_1}", "{shape=3}", "{size}"} {
		if _, err := with("window", bad).Window(); err == nil {
			t.Errorf("window %q: expected an error", bad)
		}
	}
	for _, bad := range []string{"1", "1_", "1_2_3_4", "1_2y3_4"} {
		if _, err := with("padding", bad).Padding(); err == nil {
			t.Errorf("padding %q: expected an error", bad)
		}
	}
	for _, bad := range []string{"", "{1:2}", "{[1]}", "{[1:2:3:4]}", "{[1:2}", "{[a:b]}"} {
		if _, err := with("slice", bad).Slices(); err == nil {
			t.Errorf("slice %q: expected an error", bad)
		}
	}
	for _, bad := range []string{"", "bf_io", "b0f_0io->b1f", "bff_0io->b0f", "b0f_0io->b01f", "b00f_01io->b01f"} {
		if _, _, _, _, err := with("dim_labels", bad).DimLabels(); err == nil {
			t.Errorf("dim_labels %q: expected an error", bad)
		}
	}
	for value, want := range map[string]uint64{
		`{"known_trip_count":{"n":"12"},"x":{"n":"3"}}`:                           12,
		`"{\"known_trip_count\":{\"n\":\"7\"}}"`:                                  7,
		`{"known_init_step":{"init":"0","step":"1"},"known_trip_count":{"n": 5}}`: 5,
	} {
		if n, ok := with("backend_config", value).TripCount(); n != want || !ok {
			t.Errorf("%s: %d, %v", value, n, ok)
		}
	}
	for _, value := range []string{"", `{"n":"3"}`, `{"known_trip_count":{}}`, `{"known_trip_count":{"n":"-3"}}`, `{"known_trip_count"`} {
		if n, ok := with("backend_config", value).TripCount(); ok {
			t.Errorf("%s: %d", value, n)
		}
	}
}

// A window's places, counted one by one.
func TestWindowOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string, low, high int64) int64 { return rapid.Int64Range(low, high).Draw(t, name) }
		w := WindowDim{Size: draw("size", 1, 4), Stride: draw("stride", 1, 3), Low: draw("low", -3, 3), High: draw("high", -3, 3),
			BaseDilation: draw("base", 1, 3), Dilation: draw("dilation", 1, 3)}
		n := draw("n", 0, 9)
		length := w.Low + w.High
		if n > 0 {
			length += (n-1)*w.BaseDilation + 1
		}
		places := int64(0)
		for at := int64(0); at+(w.Size-1)*w.Dilation < length; at += w.Stride {
			places++
		}
		if got, ok := w.Out(n); !ok || got != places {
			t.Fatalf("%+v over %d: %d, want %d", w, n, got, places)
		}
	})
	for _, w := range []WindowDim{{}, {Size: 1, Stride: 1, BaseDilation: 1 << 62, Dilation: 8}, {Size: 1 << 62, Stride: 1, BaseDilation: 1, Dilation: 8}, {Size: 1, Stride: 1, BaseDilation: 1, Dilation: 1, Low: 1 << 61}} {
		if n, ok := w.Out(1 << 40); ok {
			t.Errorf("%+v: %d", w, n)
		}
	}
}
