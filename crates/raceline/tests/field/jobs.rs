//! fio's job files, given to `raceline perf --job`.
