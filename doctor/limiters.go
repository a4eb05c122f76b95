package doctor

// Messages of programs that hold others to a part of a GPU.

var limiterPatterns = []pattern{
	// HAMi-core's allocator.c: what would be in use, and the limit.
	{kind: Limiter, name: "hami", within: true, line: true, anchors: []string{" OOM 0", " OOM 1", " OOM 2", " OOM 3", " OOM 4", " OOM 5", " OOM 6", " OOM 7", " OOM 8", " OOM 9"}, rest: `(?:.*?HAMI-core[^)]*pid:{pid})?.*?Device {device} OOM {inuse} / {limit}`},
	{kind: Limiter, name: "hami", once: true, anchors: []string{"[HAMI-core ", "[vgpu error", "[4pdvGPU"}, rest: `(?P<value>\w+)?`},
	{kind: Limiter, name: "nvshare", anchors: []string{"real_cuMemGetInfo returned "}, rest: `free={free}, total={total}`, value: "real"},
	{kind: Limiter, name: "nvshare", anchors: []string{"nvshare's cuMemGetInfo returning "}, rest: `free={free}, total={total}`, value: "shown"},
	{kind: Limiter, name: "nvshare", anchors: []string{"[NVSHARE]"}, rest: `(?:\[\w+\])?:? ?cuMemAlloc requested {want}`},
}
