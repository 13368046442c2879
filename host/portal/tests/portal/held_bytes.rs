//! Counts the bytes that the thread of a test has allocated and not given back. A test whose requests run on its own thread
//! sees what they hold in memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

thread_local! {
    /// The bytes held now, and their maximum so far.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // The last bytes that an ending thread releases are not counted.
    let counted = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
    counted.ok();
}

// SAFETY: the system's allocator does all the work. Counting allocates nothing.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// The bytes that this thread has allocated since this was created.
pub struct HeldBytes(isize);

impl HeldBytes {
    pub fn begin() -> Self {
        HELD.with(|held| {
            let (now, _) = held.get();
            held.set((now, now));
            Self(now)
        })
    }

    pub fn now(&self) -> usize {
        HELD.with(|held| usize::try_from(held.get().0 - self.0).unwrap_or(0))
    }

    pub fn most(&self) -> usize {
        HELD.with(|held| usize::try_from(held.get().1 - self.0).unwrap_or(0))
    }
}
