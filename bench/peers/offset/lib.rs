//! OffsetAllocator as a peer: offset-allocator, the port of Sebastian Aaltonen's
//! allocator to Rust. Nothing of it is stubbed.
//!
//! It works in numbers of 32 bits, so a unit is 256 bytes here and a device at most
//! 1 TiB. It has no driver: the whole device is one grant, taken at the start.

use offset_allocator::{Allocation, Allocator};
use std::cell::RefCell;

const UNIT: u64 = 256;
/// Of the driver's grants.
const GRANULARITY: u64 = 2 << 20;
const BASE: u64 = 0x7f00_0000_0000;
/// Nodes: one for each block and each hole. The default of 131,072 is too few for the
/// trace with 100,000 blocks.
const NODES: u32 = 1 << 18;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Block {
    addr: u64,
    handle: u64,
}

#[repr(C)]
pub struct Device {
    held: u64,
    calls: u64,
}

struct Pool {
    allocator: Allocator,
    device: u64,
}

thread_local! {
    static POOL: RefCell<Option<Pool>> = const { RefCell::new(None) };
}

// An Allocation is two numbers of 32 bits, one of them private: it travels in the
// block's handle as it is.
const _: () = assert!(size_of::<Allocation>() == size_of::<u64>());

#[no_mangle]
pub extern "C" fn peer_open(device: u64) -> i32 {
    let device = device / GRANULARITY * GRANULARITY;
    let Ok(units) = u32::try_from(device / UNIT) else { return 0 };
    let allocator = Allocator::with_max_allocs(units, NODES);
    POOL.set(Some(Pool { allocator, device }));
    1
}

#[no_mangle]
pub unsafe extern "C" fn peer_alloc(bytes: u64, out: *mut Block) -> i32 {
    let Ok(units) = u32::try_from(bytes.div_ceil(UNIT)) else { return 0 };
    POOL.with_borrow_mut(|p| match p.as_mut().unwrap().allocator.allocate(units) {
        Some(a) => {
            let addr = BASE + u64::from(a.offset) * UNIT;
            *out = Block { addr, handle: std::mem::transmute::<Allocation, u64>(a) };
            1
        }
        None => 0,
    })
}

#[no_mangle]
pub unsafe extern "C" fn peer_free(block: Block, _bytes: u64) {
    POOL.with_borrow_mut(|p| {
        p.as_mut().unwrap().allocator.free(std::mem::transmute::<u64, Allocation>(block.handle))
    })
}

#[no_mangle]
pub extern "C" fn peer_state() -> Device {
    POOL.with_borrow(|p| Device { held: p.as_ref().unwrap().device, calls: 1 })
}

#[no_mangle]
pub extern "C" fn peer_close() {
    POOL.set(None)
}
