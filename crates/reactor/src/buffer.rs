//! Memory for I/O: pooled buffers with one owner, read-only shared buffers, and memory regions.
//!
//! API contract (implementation in progress).
//!
//! * [`BufferPool`] is a cheap handle (`Rc`) to one core's pool: size classes carved out of one
//!   anonymous mapping, 4096-aligned, zeroed once at creation, each class a free list.
//!   `take(len) -> Option<IoBuf>` gives the smallest class that fits; `None` when it is empty
//!   (then the next larger class is tried). Statistics: `available(class)`, `waits`.
//! * [`IoBuf`]: unique owner of one pool buffer, `Deref<Target=[u8]>`, `DerefMut`, `len()`
//!   (as asked for), `capacity()`, `set_len(n)` up to the capacity, `share() -> SharedBuf`.
//!   Dropped: back to its pool. Also `IoBuf::heap(len)`: outside any pool, for slow paths/tests.
//! * [`SharedBuf`]: `Clone` (a counter inside the pool's slot, no allocation), read-only
//!   `Deref<Target=[u8]>`, `try_unique(self) -> Result<IoBuf, SharedBuf>`.
//! * [`Region`]: a large anonymous mapping shared by all cores (`Arc<Region>`), huge pages if
//!   asked for (`madvise` or explicit), whose bytes may change at any time: only copied in and
//!   out, never borrowed as a slice. `new(len, HugePages) -> io::Result<Region>`, `len()`,
//!   `copy_out(offset, &mut [u8])`, `copy_in(offset, &[u8])`, `fill_zero(offset, len)`,
//!   `discard(offset, len)` (reads zeroes afterwards, memory given back where page-aligned),
//!   `equals(offset, &[u8]) -> bool`. Every call checks its range and panics if outside (the
//!   caller has validated it).
//! * [`RegionHandle`]: `Rc<Arc<Region>>` per core, so that per-command clones touch no cache
//!   line shared between cores. `Deref<Target = Region>`.
