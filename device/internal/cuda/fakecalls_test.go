//go:build linux && (amd64 || arm64) && !nodriver

// The fake driver's functions, with their C arguments; see fakecuda_test.go.

package cuda

import (
	"syscall"
	"unsafe"

	"gpumem/device"
)

var cudaCallbacks = map[string]any{
	"cuInit": func(flags uint64) int32 {
		f, code := enter("cuInit")
		if flags != 0 {
			f.problem("cuInit(%d)", flags)
		}
		return code
	},
	"cuDriverGetVersion": func(v *int32) int32 {
		f, code := enter("cuDriverGetVersion")
		if code == 0 {
			*v = f.version
		}
		return code
	},
	"cuGetErrorName": func(code uint64, s **byte) int32 {
		if _, c := enter("cuGetErrorName"); c != 0 || code != 12345 {
			return 1
		}
		*s = &newCodeName[0]
		return 0
	},
	"cuGetErrorString": func(code uint64, s **byte) int32 {
		if _, c := enter("cuGetErrorString"); c != 0 || code != 12345 {
			return 1
		}
		*s = &newCodeString[0]
		return 0
	},
	"cuDeviceGetCount": func(n *int32) int32 {
		f, code := enter("cuDeviceGetCount")
		if code == 0 {
			*n = int32(len(f.gpus))
		}
		return code
	},
	"cuDeviceGet": func(dev *int32, ordinal uint64) int32 {
		f, code := enter("cuDeviceGet")
		switch {
		case code != 0:
			return code
		case ordinal >= uint64(len(f.gpus)):
			return 101
		}
		*dev = int32(f.gpus[ordinal].id)
		return 0
	},
	"cuDeviceGetName": func(p *byte, n, dev uint64) int32 {
		f, code := enter("cuDeviceGetName")
		if code != 0 {
			return code
		}
		g, code := f.gpu(dev)
		if code == 0 {
			fill(p, n, g.name)
		}
		return code
	},
	"cuDeviceGetUuid": func(p *[16]byte, dev uint64) int32 {
		f, code := enter("cuDeviceGetUuid")
		if code != 0 {
			return code
		}
		g, code := f.gpu(dev)
		if code == 0 {
			*p = g.parent
		}
		return code
	},
	"cuDeviceGetUuid_v2": func(p *[16]byte, dev uint64) int32 {
		f, code := enter("cuDeviceGetUuid_v2")
		if code != 0 {
			return code
		}
		g, code := f.gpu(dev)
		if code == 0 {
			*p = g.uuid
		}
		return code
	},
	"cuDeviceTotalMem_v2": func(p *uint64, dev uint64) int32 {
		f, code := enter("cuDeviceTotalMem_v2")
		if code != 0 {
			return code
		}
		g, code := f.gpu(dev)
		if code == 0 {
			*p = g.sim.Info().Total
		}
		return code
	},
	"cuDeviceGetAttribute": func(p *int32, a, dev uint64) int32 {
		f, code := enter("cuDeviceGetAttribute")
		if code != 0 {
			return code
		}
		g, code := f.gpu(dev)
		if code != 0 {
			return code
		}
		v, ok := g.attributes[a]
		if !ok {
			return 1 // the driver is older
		}
		*p = v
		return 0
	},
	"cuDevicePrimaryCtxRetain": func(ctx *uint64, dev uint64) int32 {
		f, code := enter("cuDevicePrimaryCtxRetain")
		if code != 0 {
			return code
		}
		g, code := f.gpu(dev)
		if code == 0 {
			f.mu.Lock()
			defer f.mu.Unlock()
			g.refs++
			g.active = true
			*ctx = contextBits + g.id
		}
		return code
	},
	"cuDevicePrimaryCtxRelease_v2": func(dev uint64) int32 {
		f, code := enter("cuDevicePrimaryCtxRelease_v2")
		if code != 0 {
			return code
		}
		g, code := f.gpu(dev)
		if code == 0 {
			f.mu.Lock()
			defer f.mu.Unlock()
			if g.refs--; g.refs < 0 {
				return 201
			}
			if g.refs == 0 {
				g.active = false
			}
		}
		return code
	},
	"cuDevicePrimaryCtxGetState": func(dev uint64, flags *uint32, active *int32) int32 {
		f, code := enter("cuDevicePrimaryCtxGetState")
		if code != 0 {
			return code
		}
		g, code := f.gpu(dev)
		if code == 0 {
			f.mu.Lock()
			defer f.mu.Unlock()
			if *flags, *active = 0, 0; g.active {
				*active = 1
			}
		}
		return code
	},
	"cuCtxGetCurrent": func(ctx *uint64) int32 {
		f, code := enter("cuCtxGetCurrent")
		if code == 0 {
			f.mu.Lock()
			defer f.mu.Unlock()
			*ctx = 0
			if stack := f.stacks[syscall.Gettid()]; len(stack) > 0 {
				*ctx = stack[len(stack)-1]
			}
		}
		return code
	},
	"cuCtxPushCurrent_v2": func(ctx uint64) int32 {
		f, code := enter("cuCtxPushCurrent_v2")
		if code == 0 {
			if ctx>>32 != contextBits>>32 {
				return f.problem("%#x is pushed as a context", ctx)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.stacks[syscall.Gettid()] = append(f.stacks[syscall.Gettid()], ctx)
		}
		return code
	},
	"cuCtxPopCurrent_v2": func(ctx *uint64) int32 {
		f, code := enter("cuCtxPopCurrent_v2")
		f.mu.Lock()
		defer f.mu.Unlock()
		stack := f.stacks[syscall.Gettid()]
		if len(stack) == 0 {
			return 201
		}
		*ctx = stack[len(stack)-1]
		f.stacks[syscall.Gettid()] = stack[:len(stack)-1]
		return code
	},
	"cuCtxGetId": func(ctx uint64, id *uint64) int32 {
		f, code := enter("cuCtxGetId")
		if code != 0 {
			return code
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if ctx != 0 { // of the primary contexts, which are never freed
			for _, g := range f.gpus {
				if ctx == contextBits+g.id {
					*id = g.id<<32 + g.generation
					return 0
				}
			}
			return 201
		}
		g, code := f.current()
		if code == 0 {
			*id = g.id<<32 + g.generation
		}
		return code
	},
	"cuThreadExchangeStreamCaptureMode": func(mode *int32) int32 {
		f, code := enter("cuThreadExchangeStreamCaptureMode")
		if code == 0 {
			f.mu.Lock()
			defer f.mu.Unlock()
			*mode, f.modes[syscall.Gettid()] = f.modes[syscall.Gettid()], *mode
		}
		return code
	},
	"cuCtxSynchronize": func() int32 {
		f, g, code := in("cuCtxSynchronize")
		if code == 0 {
			code = f.result(g.Synchronize())
		}
		return code
	},

	"cuMemGetInfo_v2": func(free, total *uint64) int32 {
		f, g, code := in("cuMemGetInfo_v2")
		if code == 0 {
			var err error
			*free, *total, err = g.MemInfo()
			code = f.result(err)
		}
		return code
	},
	"cuMemAlloc_v2": func(p *uint64, n uint64) int32 {
		f, g, code := in("cuMemAlloc_v2")
		if code == 0 {
			r, err := g.Alloc(n)
			*p, code = r.Addr, f.result(err)
		}
		return code
	},
	"cuMemAllocManaged": func(p *uint64, n, flags uint64) int32 {
		f, g, code := in("cuMemAllocManaged")
		if code == 0 {
			if flags != 1 {
				return f.problem("cuMemAllocManaged with flags %d", flags)
			}
			r, err := g.AllocManaged(n)
			*p, code = r.Addr, f.result(err)
		}
		return code
	},
	"cuMemHostAlloc": func(p *uint64, n, flags uint64) int32 {
		f, _, code := in("cuMemHostAlloc")
		if code != 0 {
			return code
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.pinned == nil {
			f.pinned = map[uint64][]byte{}
		}
		b := make([]byte, n)
		*p = uint64(uintptr(unsafe.Pointer(&b[0])))
		f.pinned[*p] = b
		return 0
	},
	"cuMemFreeHost": func(p uint64) int32 {
		f, _, code := in("cuMemFreeHost")
		if code != 0 {
			return code
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.pinned[p] == nil {
			return int32(invalidValue)
		}
		delete(f.pinned, p)
		return 0
	},
	"cuMemFree_v2": func(addr uint64) int32 {
		f, g, code := in("cuMemFree_v2")
		if code == 0 {
			code = f.result(g.Free(addr))
			f.mu.Lock()
			defer f.mu.Unlock()
			code = max(code, f.late["cuMemFree_v2"])
		}
		return code
	},
	"cuMemGetAddressRange_v2": func(base, n *uint64, addr uint64) int32 {
		_, g, code := in("cuMemGetAddressRange_v2")
		if code == 0 {
			if g.Read(addr, make([]byte, 1)) != nil { // nothing is there
				return 500
			}
			*base, *n = addr, 1
		}
		return code
	},
	"cuMemcpyHtoDAsync_v2": func(to uint64, from *byte, n, s uint64) int32 {
		f, g, code := in("cuMemcpyHtoDAsync_v2")
		if code == 0 {
			f.ofStream(g, s, false)
			code = f.result(g.Write(to, unsafe.Slice(from, n)))
		}
		return code
	},
	"cuMemcpyDtoHAsync_v2": func(to *byte, from, n, s uint64) int32 {
		f, g, code := in("cuMemcpyDtoHAsync_v2")
		if code == 0 {
			f.ofStream(g, s, false)
			code = f.result(g.Read(from, unsafe.Slice(to, n)))
		}
		return code
	},
	"cuMemcpyDtoDAsync_v2": func(to, from, n, s uint64) int32 {
		f, g, code := in("cuMemcpyDtoDAsync_v2")
		if code == 0 {
			code = f.result(g.CopyAsync(to, from, n, f.ofStream(g, s, false)))
		}
		return code
	},
	"cuMemsetD8Async": func(addr, b, n, s uint64) int32 {
		f, g, code := in("cuMemsetD8Async")
		if code == 0 {
			if b > 255 {
				return f.problem("cuMemsetD8Async of %#x", b)
			}
			h := f.ofStream(g, s, false)
			if s == f.side { // the host's, who waits for it
				return f.result(g.Fill(addr, n, byte(b)))
			}
			code = f.result(g.FillAsync(addr, n, byte(b), h))
		}
		return code
	},

	"cuStreamCreate": func(p *uint64, flags uint64) int32 {
		f, g, code := in("cuStreamCreate")
		if code == 0 {
			if flags != 1 {
				return f.problem("cuStreamCreate with flags %d", flags)
			}
			s, err := g.StreamCreate()
			*p, code = f.give(g, uint64(s), streamBits), f.result(err)
		}
		return code
	},
	"cuStreamDestroy_v2": func(s uint64) int32 {
		f, g, code := in("cuStreamDestroy_v2")
		if code == 0 {
			code = f.result(g.StreamDestroy(f.ofStream(g, s, false)))
		}
		return code
	},
	"cuStreamQuery": func(s uint64) int32 {
		f, g, code := in("cuStreamQuery")
		if code == 0 {
			code = f.done(g, func() (bool, error) { return g.StreamQuery(f.ofStream(g, s, true)) })
		}
		return code
	},
	"cuStreamIsCapturing": func(s uint64, status *int32) int32 {
		f, g, code := in("cuStreamIsCapturing")
		if code == 0 {
			f.ofStream(g, s, false)
			f.mu.Lock()
			defer f.mu.Unlock()
			if *status = 0; f.capture != nil && f.capture.stream == s {
				*status = 1
			}
		}
		return code
	},
	"cuStreamWaitEvent": func(s, e, flags uint64) int32 {
		f, g, code := in("cuStreamWaitEvent")
		if code == 0 {
			if flags != 0 {
				return f.problem("cuStreamWaitEvent with flags %d", flags)
			}
			code = f.result(g.StreamWaitEvent(f.ofStream(g, s, false), device.Event(f.handle(g, e, eventBits))))
		}
		return code
	},
	"cuEventCreate": func(p *uint64, flags uint64) int32 {
		f, g, code := in("cuEventCreate")
		if code == 0 {
			if flags != 2 {
				return f.problem("cuEventCreate with flags %d", flags)
			}
			e, err := g.EventCreate()
			*p, code = f.give(g, uint64(e), eventBits), f.result(err)
		}
		return code
	},
	"cuEventDestroy_v2": func(e uint64) int32 {
		f, g, code := in("cuEventDestroy_v2")
		if code == 0 {
			code = f.result(g.EventDestroy(device.Event(f.handle(g, e, eventBits))))
		}
		return code
	},
	"cuEventRecord": func(e, s uint64) int32 {
		f, g, code := in("cuEventRecord")
		if code == 0 {
			code = f.result(g.EventRecord(device.Event(f.handle(g, e, eventBits)), f.ofStream(g, s, false)))
		}
		return code
	},
	"cuEventQuery": func(e uint64) int32 {
		f, g, code := in("cuEventQuery")
		if code == 0 {
			code = f.done(g, func() (bool, error) { return g.EventQuery(device.Event(f.handle(g, e, eventBits))) })
		}
		return code
	},
	"cuEventSynchronize": func(e uint64) int32 {
		f, g, code := in("cuEventSynchronize")
		if code == 0 {
			h := device.Event(f.handle(g, e, eventBits))
			if done, err := g.EventQuery(h); err == nil && !done {
				f.problem("a thread waits in the driver")
			}
			code = f.result(g.EventSynchronize(h))
		}
		return code
	},

	"cuDeviceGetDefaultMemPool": func(p *uint64, dev uint64) int32 {
		f, code := enter("cuDeviceGetDefaultMemPool")
		if code != 0 {
			return code
		}
		g, code := f.gpu(dev)
		if code == 0 {
			h, err := g.DefaultPool()
			*p, code = f.give(g, uint64(h), poolBits), f.result(err)
		}
		return code
	},
	"cuMemPoolCreate": func(p *uint64, props *byte) int32 {
		f, g, code := in("cuMemPoolCreate")
		if code == 0 {
			if !f.pinnedTo(g, props, 88, 24, 25, 26, 27, 28, 29, 30, 31) {
				return 1
			}
			max := *(*uint64)(unsafe.Add(unsafe.Pointer(props), 24))
			if f.version < 12020 && max != 0 {
				return f.problem("a limited pool on CUDA %d", f.version)
			}
			h, err := g.PoolCreate(max)
			*p, code = f.give(g, uint64(h), poolBits), f.result(err)
		}
		return code
	},
	"cuMemPoolDestroy": func(p uint64) int32 {
		f, g, code := in("cuMemPoolDestroy")
		if code == 0 {
			code = f.result(g.PoolDestroy(device.Pool(f.handle(g, p, poolBits))))
		}
		return code
	},
	"cuMemPoolGetAttribute": func(p, a uint64, v unsafe.Pointer) int32 {
		f, g, code := in("cuMemPoolGetAttribute")
		if code == 0 {
			n, err := g.PoolGetAttribute(device.Pool(f.handle(g, p, poolBits)), device.PoolAttribute(a))
			if a <= 3 {
				*(*uint32)(v) = uint32(n)
			} else {
				*(*uint64)(v) = n
			}
			code = f.result(err)
		}
		return code
	},
	"cuMemPoolSetAttribute": func(p, a uint64, v unsafe.Pointer) int32 {
		f, g, code := in("cuMemPoolSetAttribute")
		if code == 0 {
			n := uint64(*(*uint32)(v))
			if a > 3 {
				n = *(*uint64)(v)
			}
			code = f.result(g.PoolSetAttribute(device.Pool(f.handle(g, p, poolBits)), device.PoolAttribute(a), n))
		}
		return code
	},
	"cuMemPoolTrimTo": func(p, keep uint64) int32 {
		f, g, code := in("cuMemPoolTrimTo")
		if code == 0 {
			code = f.result(g.PoolTrim(device.Pool(f.handle(g, p, poolBits)), keep))
		}
		return code
	},
	"cuMemAllocFromPoolAsync": func(addr *uint64, n, p, s uint64) int32 {
		f, g, code := in("cuMemAllocFromPoolAsync")
		if code == 0 {
			r, err := g.AllocAsync(device.Pool(f.handle(g, p, poolBits)), n, f.ofStream(g, s, false))
			*addr, code = r.Addr, f.result(err)
		}
		return code
	},
	"cuMemFreeAsync": func(addr, s uint64) int32 {
		f, g, code := in("cuMemFreeAsync")
		if code == 0 {
			code = f.result(g.FreeAsync(addr, f.ofStream(g, s, false)))
		}
		return code
	},

	"cuMemGetAllocationGranularity": func(p *uint64, props *byte, which uint64) int32 {
		f, code := enter("cuMemGetAllocationGranularity")
		if code != 0 {
			return code
		}
		g, code := f.gpu(uint64(*(*uint32)(unsafe.Add(unsafe.Pointer(props), 12))))
		if code == 0 {
			if !f.pinnedTo(g, props, 32, 25) || which > 1 { // 25: whether other devices may reach it
				return f.problem("granularity %d asked for", which)
			}
			if *p = g.Info().Page; which == 0 {
				*p /= 32 // the least, which nobody should use
			}
		}
		return code
	},
	"cuMemAddressReserve": func(p *uint64, n, align, hint, flags uint64) int32 {
		f, g, code := in("cuMemAddressReserve")
		if code == 0 {
			if hint != 0 || flags != 0 {
				return f.problem("cuMemAddressReserve near %#x with flags %d", hint, flags)
			}
			var err error
			*p, err = g.AddressReserve(n, align)
			code = f.result(err)
		}
		return code
	},
	"cuMemAddressFree": func(addr, n uint64) int32 {
		f, g, code := in("cuMemAddressFree")
		if code == 0 {
			code = f.result(g.AddressFree(addr, n))
		}
		return code
	},
	"cuMemCreate": func(p *uint64, n uint64, props *byte, flags uint64) int32 {
		f, g, code := in("cuMemCreate")
		if code == 0 {
			if !f.pinnedTo(g, props, 32) || flags != 0 {
				return f.problem("cuMemCreate with flags %d", flags)
			}
			h, err := g.MemCreate(n)
			*p, code = f.give(g, uint64(h), memoryBits), f.result(err)
		}
		return code
	},
	"cuMemRelease": func(h uint64) int32 {
		f, g, code := in("cuMemRelease")
		if code == 0 {
			code = f.result(g.MemRelease(device.Handle(f.handle(g, h, memoryBits))))
		}
		return code
	},
	"cuMemMap": func(addr, n, offset, h, flags uint64) int32 {
		f, g, code := in("cuMemMap")
		if code == 0 {
			if offset != 0 || flags != 0 {
				return f.problem("cuMemMap at offset %d with flags %d", offset, flags)
			}
			code = f.result(g.MemMap(addr, n, device.Handle(f.handle(g, h, memoryBits))))
		}
		return code
	},
	"cuMemSetAccess": func(addr, n uint64, access *[3]int32, count uint64) int32 {
		f, g, code := in("cuMemSetAccess")
		if code == 0 {
			if count != 1 || *access != [3]int32{1, int32(g.id), 3} {
				return f.problem("cuMemSetAccess %v, %d of them", *access, count)
			}
			code = f.result(g.MemSetAccess(addr, n))
		}
		return code
	},
	"cuMemUnmap": func(addr, n uint64) int32 {
		f, g, code := in("cuMemUnmap")
		if code == 0 {
			code = f.result(g.MemUnmap(addr, n))
		}
		return code
	},
}

// What the driver says of a code that is newer than this package.
var (
	newCodeName   = append([]byte("CUDA_ERROR_OF_TOMORROW"), 0)
	newCodeString = append([]byte("something new"), 0)
)
