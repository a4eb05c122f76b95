package torch

// The fields of a snapshot's dicts. A field may be missing or of any type: the functions
// here report whether it is there.

// stringField reads a string; it is "" if it is missing or something else.
func stringField(d *dict, key string) string {
	v, _ := d.get(key)
	s, _ := v.(string)
	return s
}

// sizeField reads a number of bytes.
func sizeField(d *dict, key string) (uint64, bool) {
	switch v, _ := d.get(key); n := v.(type) {
	case int64:
		return uint64(n), n >= 0
	case uint64:
		return n, true
	}
	return 0, false
}

// addressField reads an address. Some platforms write addresses above 2^63 as
// negative numbers.
func addressField(d *dict, key string) (uint64, bool) {
	switch v, _ := d.get(key); n := v.(type) {
	case int64:
		return uint64(n), true
	case uint64:
		return n, true
	}
	return 0, false
}

// intField reads a number that may be missing; then it is 0.
func intField(d *dict, key string) int64 {
	n, _ := addressField(d, key)
	return int64(n)
}
