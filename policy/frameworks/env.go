// The environment as our own runtime reads it: policy "env".

package frameworks

import (
	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// FromEnv returns what our own runtime does with an environment: what the newest JAX
// does, and besides what JAX's documentation says of two variables of
// TensorFlow's, which JAX itself does not read or reads otherwise.
//
//   - TF_GPU_ALLOCATOR=cuda_malloc_async is the driver's pool, with no big
//     preallocation; cuda_malloc is platform. XLA_PYTHON_CLIENT_ALLOCATOR, where
//     it names another than default, goes before it.
//   - TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=N makes that pool take N bytes at
//     once and keep them; -1 as many as would be preallocated by default. Where
//     less is free it takes none and goes on.
//
// The policy has the Kind that is built. Settings that this kind ignores have no
// effect on it; such settings, those not recognised and those that make no sense
// give warnings, in a fixed order. The error is nil or a *[SettingError]; it is
// the first one that JAX would meet, and neither policy nor warnings come with
// it. [Explain] says more.
func FromEnv(env policy.Environment) (policy.Policy, []policy.Warning, error) {
	r, err := readOurs(env)
	if err != nil {
		return policy.Policy{}, nil, err
	}
	return r.Policy, r.Warnings, nil
}

// notOpened is what our runtime does with a setting that is refused.
const notOpened = "the pool is not opened"

// readOurs returns what our runtime does with an environment.
func readOurs(env policy.Environment) (policy.Reading, *policy.SettingError) {
	jax := env
	ours := newNotes(env)
	choice := ours.tfAllocator()
	if choice != "" {
		jax = env.With(allocatorVar, choice)
	}
	// JAX's way with these variables is not ours, and we have no platforms and no pinned pool.
	jax = jax.OnGPU()
	for _, name := range []string{asyncVar, deterministicVar, hostPreVar, hostLimitVar} {
		jax = jax.Without(name)
	}
	r, err := readJAX(jax, newestJAX, jaxReleases().At(policy.Newest))
	if err != nil {
		err.Then = notOpened
		return r, err
	}
	r.Pools = nil // our runtime makes one
	r.Policy.Spec, r.Policy.Name = "env", "env"
	if choice != "" {
		r.Settings = r.Settings[1:] // that of the allocator is TF_GPU_ALLOCATOR's
	}
	if r.Policy.Kind == policy.Async && choice != "" && env.Get(preallocateVar) == "" {
		r.Policy.Preallocate, r.Policy.AsyncKeep = false, true
	}
	if err := ours.reserve(&r.Policy); err != nil {
		return r, err
	}
	r.Env = env
	r.Settings = append(ours.Settings, r.Settings...)
	r.Warnings = append(ours.Warnings, r.Warnings...)
	return r, nil
}

// tfAllocator reads TF_GPU_ALLOCATOR, and gives what it means in the words of
// XLA_PYTHON_CLIENT_ALLOCATOR; "" where it means nothing.
func (n *notes) tfAllocator() string {
	text := n.Env.Get(tfAllocatorVar)
	choice := map[string]string{"cuda_malloc_async": "cuda_async", "cuda_malloc": "platform"}[text]
	own, set := n.Env.Lookup(allocatorVar)
	switch {
	case text == "":
	case choice == "":
		n.Warn(tfAllocatorVar, tfAllocatorVar+"=cuda_malloc_async", "%s is not recognised and means the pool (bfc); write cuda_malloc_async", literal.PyRepr(text))
	case set && literal.PyLower(own) != "default":
		n.Warn(tfAllocatorVar, "-"+tfAllocatorVar, "ignored: %s=%s goes before it", allocatorVar, own)
		return ""
	case choice == "platform":
		n.Effect(tfAllocatorVar, "each allocation is a separate one of the driver's, which its free releases; slow")
	default:
		n.Effect(tfAllocatorVar, "the driver's own pool (cudaMallocAsync)")
	}
	return choice
}

// reserve reads TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC as the documentation
// has it.
func (n *notes) reserve(p *policy.Policy) *policy.SettingError {
	text := n.Env.Get(asyncVar)
	if text == "" {
		return nil
	}
	if p.Kind != policy.Async {
		n.Warn(asyncVar, "", "ignored: only the driver's pool reads it, which %s=cuda_async is", allocatorVar)
		return nil
	}
	bytes, ok := literal.CInt(text)
	switch {
	case !ok:
		return &policy.SettingError{Name: asyncVar, Text: cParse(asyncVar, text, "int64", "0"), Then: notOpened}
	case bytes < -1:
		n.Warn(asyncVar, "", "%d makes no sense and reserves nothing; write a number of bytes, or -1", bytes)
		return nil
	case bytes == -1:
		n.Effect(asyncVar, "preallocates as much as by default, if that much is free, else nothing")
	default:
		n.Effect(asyncVar, "preallocates this many bytes if that much is free, else none; the pool can still grow")
	}
	p.Preallocate, p.AsyncKeep, p.AsyncPrealloc = false, true, bytes
	return nil
}
