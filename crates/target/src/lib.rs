//! NVMe/TCP target: listeners, placement, connections, execution.
