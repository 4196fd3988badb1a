//! NVMe and NVMe/TCP as state machines that do no I/O.
