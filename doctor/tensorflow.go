package doctor

// Messages of TensorFlow that its pool and libraries do not print.

var tensorflowPatterns = []pattern{
	{kind: TFOOM, framework: "tensorflow", anchors: []string{"OOM when allocating tensor with shape"},
		rest: `(?P<value> ?\[[\d,? ]*\])(?:.*?device:GPU:{device} by allocator (?P<allocator>\w+)|.*?by allocator (?P<allocator>\w+))?`},
	{kind: TFOOM, framework: "tensorflow", anchors: []string{"OOM when allocating tensor of shape"}, rest: `(?P<value> ?\[[\d,? ]*\])`},
	{kind: TFCopy, framework: "tensorflow", anchors: []string{"Dst tensor is not initialized"}, rest: ``},
	{kind: TFCopy, framework: "tensorflow", anchors: []string{"Failed copying input tensor from "}, rest: `.*?to \S*GPU:{device}.*?Dst tensor is not initialized`},
	// gpu_device.cc; the words before "memory" changed in 1.4, 2.5 and 2.6.
	{kind: TFDevice, framework: "tensorflow", anchors: []string{"Created device ", "Created TensorFlow device ("},
		rest: `.*?GPU:{device} with {limit} memory(?:.*?name: (?P<name>[\w ./()-]{1,60}?)(?:,|$| \w+\.\w+))?`},
	{kind: TFDevice, framework: "tensorflow", anchors: []string{"Creating TensorFlow device ("},
		rest: `[^)]*\) -> (?:physical GPU )?\(device: {device}, name: (?P<name>[\w ./()-]{1,60}?)(?:,|$| \w+\.\w+)`},
	// 1.4 to 2.0, and before that on two lines.
	{kind: DeviceFree, framework: "tensorflow", anchors: []string{"totalMemory: "}, rest: `{total} freeMemory: {free}`},
	{kind: DeviceFree, framework: "tensorflow", anchors: []string{"Total memory: "}, rest: `{total}`},
	{kind: DeviceFree, framework: "tensorflow", anchors: []string{"Free memory: "}, rest: `{free}`},
	{kind: Setting, framework: "tensorflow", name: "TF_FORCE_GPU_ALLOW_GROWTH", nonfatal: true, anchors: []string{"The TF_FORCE_GPU_ALLOW_GROWTH environment variable is set but could not be parsed"}, rest: `(?:: "(?P<value>[^"]*)")?`},
}
